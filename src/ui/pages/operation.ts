import { Refusal } from '../../base/refusal.ts';
import { findOperation, type Operation } from '../../ledger/operation.ts';
import { findWallet } from '../../ledger/wallet.ts';
import { html } from '../html.ts';
import { below, type Page } from '../layout.ts';
import { buttonLink, card, dollars, facts, form, id, link, money, named, outside, state } from '../parts.ts';
import type { Go } from '../sign-in.ts';
import { ago, when } from '../times.ts';
import { run, type Visit } from '../visit.ts';
import { routeOf, tagsOf, tookOf } from './operations.ts';
import { endOf, usageOf } from './wallet.ts';

function operationIn({ app, params }: Visit): Operation {
  const operation = findOperation(app.ledger.read, params.id as string);
  if (!operation) throw new Refusal('not_found', 'There is no such operation.');
  return operation;
}

/** Shows one operation: its request, hold and charge, and how it can be resolved. */
export function operationPage(visit: Visit): Page {
  const { app } = visit;
  const it = operationIn(visit);
  const wallet = findWallet(app.ledger.read, it.walletId);
  const at = `/operations/${it.id}/resolve`;
  const resolution = html`<p class="actions">${buttonLink(`${at}?decision=charge`, 'It happened: charge it')}${buttonLink(`${at}?decision=release`, 'It did not happen: release it')}</p>`;
  const body = html`
    ${it.state === 'uncertain' && html`<p class="notice bad">Its outcome is unknown since ${when(it.uncertainAt, visit)}${it.reason !== null && html`: ${outside(it.reason)}`}.</p>`}
    ${card(
      'Operation',
      facts([
        ['Wallet', link(`/wallets/${it.walletId}`, named(it.walletId, wallet?.name))],
        ['Kind', it.kind.replaceAll('_', ' ')],
        ['For', outside(it.subject)],
        ['Held', money(it.hold)],
        ['Charged', it.charge === null ? '–' : money(it.charge)],
        ['Tokens', usageOf(it.usage) || '–'],
        ['Route', routeOf(visit, it) || '–'],
        ['Begun', html`${when(it.createdAt, visit)} <span class="weak">(${ago(it.createdAt, visit)})</span>`],
        [
          'Settled',
          it.settledAt === null
            ? '–'
            : html`${when(it.settledAt, visit)} <span class="weak">${endOf(it.settledBy ?? '')}, after ${tookOf(it)}</span>`,
        ],
        it.state === 'settled' && it.reason !== null && ['Reason', outside(it.reason)],
        it.resourceId !== null && ['Lease', link(`/leases/${it.resourceId}`, it.resourceId)],
        ['Request', id(it.requestId)],
        ['Idempotency key', html`<code>${outside(it.idempotencyKey)}</code>`],
        ['Id', id(it.id)],
        ...tagsOf(it).map(([name, value]) => [`Tag ${outside(name)}`, outside(value)] as const),
      ]),
    )}
    ${it.state === 'uncertain' && card('Resolve it', html`<p>Did the model server or the backend do it? Look into its log or its bill.</p>${resolution}`)}`;
  return {
    title: outside(it.subject),
    body,
    aside: state(it.outcome ?? it.state),
    ...below('/operations'),
  };
}

/** Asks for confirmation and a reason before an uncertain operation is settled by the operator's decision. */
export function confirmResolve(visit: Visit): Page {
  const it = operationIn(visit);
  if (it.state !== 'uncertain') throw new Refusal('conflict', 'This operation is settled. That is final.');
  const decision = visit.query.get('decision');
  if (decision !== 'charge' && decision !== 'release')
    throw new Refusal('invalid_request', 'Open the operation, and choose whether it is charged or released.');
  const isCharge = decision === 'charge';
  const wallet = named(it.walletId, findWallet(visit.app.ledger.read, it.walletId)?.name);
  const whose = link(`/wallets/${it.walletId}`, wallet);
  const what = isCharge
    ? html`${whose} pays the whole hold of ${dollars(it.hold)} for ${outside(it.subject)}.`
    : html`${whose} gets the hold of ${dollars(it.hold)} for ${outside(it.subject)} back, and pays nothing.`;
  const resolution = form({
    action: `/operations/${it.id}/resolve`,
    hidden: { decision },
    fields: [
      {
        name: 'reason',
        label: 'How you know',
        required: true,
        placeholder: isCharge ? 'the model server has billed it' : 'the model server’s log has no such request',
      },
    ],
    submit: isCharge ? `Charge ${dollars(it.hold)}` : `Release ${dollars(it.hold)}`,
    tone: 'danger',
  });
  const body = card(
    isCharge ? 'Charge it for good?' : 'Release it for good?',
    html`<p>${what} Your decision is final and stands in the journal with your reason.</p>${resolution}<p class="actions">${buttonLink(`/operations/${it.id}`, 'Leave it open')}</p>`,
  );
  return {
    title: `${isCharge ? 'Charge' : 'Release'} ${outside(it.subject)}`,
    body,
    ...below('/operations', [`/operations/${it.id}`, outside(it.subject)]),
  };
}

/** Settles an uncertain operation by the operator's decision. */
export async function resolve(visit: Visit): Promise<Go> {
  const { id: operationId } = operationIn(visit);
  const decision = visit.form.get('decision') as 'charge' | 'release'; // The command checks it.
  await run(visit, 'operation.resolve', { id: operationId, decision, reason: visit.form.get('reason') ?? '' });
  return { to: `/operations/${operationId}?done=resolved` };
}
