import { findRouterKey, listRouterKeys, type RouterKey } from '../../access/router-keys.ts';
import { PERIODS, type Period } from '../../base/calendar.ts';
import { newId } from '../../base/id.ts';
import { centsToNanos, formatUsd } from '../../base/money.ts';
import { Refusal } from '../../base/refusal.ts';
import { createRouterKey } from '../../http/routes/router.ts';
import { createChild as createChildEndpoint } from '../../http/routes/run.ts';
import { endRefill, setRefill } from '../../http/routes/wallets.ts';
import { type Refill, refillOf } from '../../ledger/refill.ts';
import type { Wallet } from '../../ledger/wallet.ts';
import { routerKeyRecord } from '../../wire/router.ts';
import { type Html, html } from '../html.ts';
import { below, type Page } from '../layout.ts';
import { badge, buttonLink, card, cents, copyButton, form, named, outside, table } from '../parts.ts';
import type { Go } from '../sign-in.ts';
import { ago, when } from '../times.ts';
import { callAsWallet, callEndpoint, run, type Visit, walletSeen } from '../visit.ts';
import { centsIn, LIVES, lifeIn, type OpenedWallet, tokenPage } from './wallets.ts';

// The forms of a wallet that set its refill, open a child wallet and make a gateway key.

const CARRIES = { none: 'only what is missing to it', all: 'all of it, on top of what is left' } as const;
const EVERY: Record<Period, string> = {
  day: 'every midnight',
  week: 'every Monday',
  month: 'every first of the month',
};

/** Describes the refill of a wallet. */
export function refillSentence(visit: Visit, wallet: Wallet): Html {
  const refill = refillOf(wallet);
  if (!refill) return html`none`;
  const carry = refill.carry || 'none';
  const rest = carry === 'none' ? 'up to' : carry === 'all' ? 'plus' : `with at most ${cents(carry)} left over,`;
  return html`${rest} ${cents(refill.cents)} ${EVERY[refill.every]} (${refill.zone}), next ${when(wallet.refillAt, visit)}`;
}

/** Renders the form that sets the refill of a wallet, and the one that ends it. */
export function refillForms(wallet: Wallet): Html {
  const refill = refillOf(wallet);
  const carry = refill?.carry || 'none';
  // An amount that was set elsewhere can be kept: whoever changes another field does not mean to end it.
  const asSet = typeof carry === 'number' ? [[String(carry), `with at most ${cents(carry)} left over`] as const] : [];
  const set = form({
    action: `/wallets/${wallet.id}/refill`,
    fields: [
      {
        name: 'amount',
        label: 'Refill it',
        required: true,
        inputmode: 'decimal',
        placeholder: '5.00',
        value: refill ? formatUsd(centsToNanos(refill.cents)) : '',
        hint: 'Dollars, from the account.',
      },
      {
        name: 'every',
        label: 'When',
        options: PERIODS.map((it) => [it, EVERY[it]] as const),
        value: refill?.every ?? 'day',
      },
      { name: 'zone', label: 'In the time zone', value: refill?.zone ?? 'UTC', placeholder: 'Europe/Berlin' },
      {
        name: 'carry',
        label: 'How much',
        options: [...Object.entries(CARRIES), ...asSet],
        value: String(carry),
      },
    ],
    submit: refill ? 'Change the refill' : 'Set the refill',
  });
  const end = refill && form({ action: `/wallets/${wallet.id}/refill/end`, submit: 'End the refills' });
  return html`<div class="stack">${set}${end}</div>`;
}

/** Returns what a form says of the rest of the last period: a number is of cents. */
function carryIn(text: string | null): Refill['carry'] {
  if (text !== null && /^\d+$/.test(text)) return Number(text);
  return text === 'all' ? 'all' : 'none';
}

export async function setWalletRefill(visit: Visit): Promise<Go> {
  const { viewer, form: sent } = visit;
  const { id } = walletSeen(visit, visit.params.id as string);
  const refill = {
    cents: centsIn(sent.get('amount')),
    every: (sent.get('every') ?? '') as Period,
    zone: sent.get('zone')?.trim() || 'UTC',
    carry: carryIn(sent.get('carry')),
  };
  if (viewer.kind === 'operator') await run(visit, 'wallet.refill', { id, refill });
  else await callEndpoint(visit, setRefill, { raw: refill, params: { id } });
  return { to: `/wallets/${id}?done=refill-set` };
}

export async function endWalletRefill(visit: Visit): Promise<Go> {
  const { id } = walletSeen(visit, visit.params.id as string);
  if (visit.viewer.kind === 'operator') await run(visit, 'wallet.refill', { id, refill: null });
  else await callEndpoint(visit, endRefill, { params: { id } });
  return { to: `/wallets/${id}?done=refill-ended` };
}

/** Renders the form that opens a child wallet. */
export const childForm = (wallet: Wallet): Html =>
  form({
    action: `/wallets/${wallet.id}/children`,
    hidden: { key: newId('req') },
    fields: [
      { name: 'name', label: 'Name of a child wallet', required: true, placeholder: 'sub-agent' },
      {
        name: 'budget',
        label: 'Its budget in dollars',
        required: true,
        inputmode: 'decimal',
        placeholder: '1.00',
        hint: 'It comes out of this wallet, and what is left returns to it.',
      },
      { name: 'life', label: 'It lives for', options: LIVES },
    ],
    submit: 'Open a child wallet',
  });

/** Opens a child wallet as the wallet itself would, and hands over its token. */
export async function createChild(visit: Visit): Promise<Page> {
  const { form: sent } = visit;
  const wallet = walletSeen(visit, visit.params.id as string);
  const raw = {
    name: sent.get('name') ?? '',
    budget_usd: formatUsd(centsToNanos(centsIn(sent.get('budget')))),
    expires_in_seconds: lifeIn(sent),
  };
  const key = sent.get('key') ?? undefined;
  const opened = await callAsWallet<OpenedWallet>(visit, wallet, createChildEndpoint, { raw, key });
  return tokenPage(opened.id, named(opened.id, raw.name), opened.agent_token, opened.env.SVC_BROKER_URL);
}

/** Renders the gateway keys of a wallet, and the form that makes one. */
export function gatewayKeyCard(visit: Visit, wallet: Wallet): Html {
  const isOperator = visit.viewer.kind === 'operator';
  const rows = listRouterKeys(visit.app.ledger.read, wallet.id).map((it) => [
    html`<code>svc_router_&hellip;${it.last4}</code>`,
    limitsOf(it),
    ago(it.createdAt, visit),
    it.revokedAt !== null
      ? badge('revoked')
      : isOperator
        ? buttonLink(`/wallets/${wallet.id}/gateway-keys/${it.id}/revoke`, 'Revoke')
        : badge('valid', 'good'),
  ]);
  const list = table(
    'Gateway keys',
    [{ label: 'Key' }, { label: 'Opens' }, { label: 'Made', kind: 'time' }, { label: 'State', kind: 'actions' }],
    rows,
    'There is none yet. A gateway key opens models alone, and may be limited to some.',
  );
  const making = form({
    action: `/wallets/${wallet.id}/gateway-keys`,
    fields: [
      { name: 'models', label: 'Models', placeholder: 'all', hint: 'Their ids, separated by commas; empty: all.' },
      {
        name: 'price',
        label: 'At most for a request, in dollars',
        inputmode: 'decimal',
        placeholder: 'no limit',
      },
    ],
    submit: 'Make a gateway key',
  });
  return html`<details class="card" id="gateway-keys"><summary>Gateway keys</summary>${list}${making}</details>`;
}

function limitsOf(key: RouterKey): Html {
  const { models, max_price_usd: price } = routerKeyRecord(key).options as {
    models?: string[] | null;
    max_price_usd?: string | null;
  };
  return html`${outside(models?.join(', ') ?? 'all models')}${price && `, at most $${price} a request`}`;
}

/**
 * Makes a gateway key, or finds the one with the same limits, and shows it. Throws `model_not_found` for a model that is not on
 * offer.
 */
export async function createGatewayKey(visit: Visit): Promise<Page> {
  const { form: sent } = visit;
  const wallet = walletSeen(visit, visit.params.id as string);
  const ids = (sent.get('models') ?? '').split(',').map((it) => it.trim());
  const models = ids.filter((it) => it !== '');
  const price = sent.get('price')?.trim();
  const raw = { ...(models.length && { models }), ...(price && { max_price_usd: price }) };
  const { api_key, base_url } = await callAsWallet<{ api_key: string; base_url: string }>(
    visit,
    wallet,
    createRouterKey,
    {
      raw,
    },
  );
  const env = `OPENAI_BASE_URL=${base_url}\nOPENAI_API_KEY=${api_key}`;
  const body = html`
    <p class="notice good" role="status">It opens ${models.length ? outside(models.join(', ')) : 'every model'} on the budget of this wallet. It is in this answer alone.</p>
    ${card('Gateway key', html`<div class="token"><pre>${api_key}</pre>${copyButton(api_key, 'the key')}</div>`)}
    ${card('Environment of a client', html`<div class="token"><pre>${env}</pre>${copyButton(env, 'the environment')}</div>`)}`;
  return {
    title: 'New gateway key',
    body,
    ...below('/wallets', [`/wallets/${wallet.id}`, named(wallet.id, wallet.name)]),
  };
}

/** Returns the wallet that the address names, and the gateway key of it. Throws `not_found`. */
function gatewayKeyIn(visit: Visit): { wallet: Wallet; keyId: string } {
  const wallet = walletSeen(visit, visit.params.id as string);
  const keyId = visit.params.key as string;
  if (findRouterKey(visit.app.ledger.read, keyId)?.walletId === wallet.id) return { wallet, keyId };
  throw new Refusal('not_found', 'This wallet has no such key.');
}

/** Asks before a gateway key is revoked. */
export function confirmRevokeGatewayKey(visit: Visit): Page {
  const { wallet, keyId } = gatewayKeyIn(visit);
  const body = card(
    'Revoke it for good?',
    html`<p>Every program that uses this gateway key is refused at once. This cannot be undone.</p>${form({ action: `/wallets/${wallet.id}/gateway-keys/${keyId}/revoke`, submit: 'Revoke the key', tone: 'danger' })}`,
  );
  return {
    title: 'Revoke a gateway key',
    body,
    ...below('/wallets', [`/wallets/${wallet.id}`, named(wallet.id, wallet.name)]),
  };
}

export async function revokeGatewayKey(visit: Visit): Promise<Go> {
  const { wallet, keyId } = gatewayKeyIn(visit);
  await run(visit, 'key.revoke', { id: keyId });
  return { to: `/wallets/${wallet.id}?done=revoked` };
}
