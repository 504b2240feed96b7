import * as v from 'valibot';
import { walletToken } from '../../access/keyring.ts';
import { fingerprint } from '../../base/fingerprint.ts';
import { centsToNanos } from '../../base/money.ts';
import { Refusal } from '../../base/refusal.ts';
import { WALLET_STATUSES } from '../../db/enums.ts';
import { refuseInactive, type Wallet, walletOf, listWallets as walletsOf } from '../../ledger/wallet.ts';
import { changeWalletBudget, extend, freeze, refill } from '../../wallet/change.ts';
import { close } from '../../wallet/close.ts';
import { open } from '../../wallet/open.ts';
import {
  Allocation,
  allocation,
  BudgetRequest,
  ExtendRequest,
  FreezeRequest,
  RefillRequest,
  WalletList,
  WalletRecord,
  WalletRequest,
  WalletToken,
  walletRecord,
} from '../../wire/wallet.ts';
import { type Call, endpoint, type HttpApp } from '../endpoint.ts';
import { PAGE_QUERY, pageOf, statusQuery } from '../page.ts';

/** Returns the current record of a wallet. */
export const recordOf = ({ ledger, clock }: Pick<HttpApp, 'ledger' | 'clock'>, wallet: Wallet) =>
  walletRecord(ledger.read, wallet, clock.now());

type CallOfAccount = Call<'account', unknown>;

/** Returns the wallet of the caller's account that a request names. Throws `not_found`. */
const namedIn = ({ ledger }: HttpApp, { principal, params }: Pick<CallOfAccount, 'principal' | 'params'>): Wallet =>
  walletOf(ledger.read, principal.accountId, params.id as string);

/** Returns what every change to a wallet that takes an Idempotency-Key has; `what` keeps one change apart from another. */
function changeIn(app: HttpApp, call: CallOfAccount, what: 'budget' | 'extend') {
  const { raw, idempotencyKey, requestId } = call;
  return { walletId: namedIn(app, call).id, idempotencyKey, fingerprint: fingerprint({ [what]: raw }), requestId };
}
const answered = (app: HttpApp, { wallet, isNew }: { wallet: Wallet; isNew: boolean }) => ({
  body: recordOf(app, wallet),
  replayed: !isNew,
});

const ID = 'wal_01k9v3c2mq8r5t7w1x4z6b0d2f';
export const EXAMPLE = {
  id: ID,
  name: 'research agent',
  status: 'active',
  budget_cents: 500,
  used_cents: 13,
  returned_cents: null,
  budget_usd: '5.00',
  used_usd: '0.1203',
  held_usd: '0.00',
  delegated_usd: '0.00',
  available_usd: '4.8797',
  parent_id: null,
  frozen_at: null,
  freeze_reason: null,
  refill: null,
  created_at: 1795000000,
  expires_at: 1795086400,
  closed_at: null,
  close_reason: null,
  cleanup: { pending: false, attempts: 0, last_error: null },
  token_hint: 'x9Q2',
};

export const listWallets = endpoint({
  summary: 'List wallets of the account, newest first, at most 100; `before` gives the next page',
  scope: 'account',
  query: v.strictObject({ ...PAGE_QUERY, status: statusQuery(WALLET_STATUSES) }),
  answer: WalletList,
  refusals: ['invalid_cursor'],
  example: { answer: { wallets: [EXAMPLE] } },
  run(app, { principal: { accountId }, query }) {
    const now = app.clock.now();
    const filter = { accountId, status: query.status as Wallet['status'] | undefined, now };
    const page = walletsOf(app.ledger.read, filter, pageOf(query, 'wal'));
    return { body: { wallets: page.map((it) => walletRecord(app.ledger.read, it, now)) } };
  },
});

export const createWallet = endpoint({
  summary: 'Reserve credit as a wallet’s budget and mint its credential',
  scope: 'account',
  idempotent: true,
  body: WalletRequest,
  status: 201,
  answer: Allocation,
  refusals: ['idempotency_conflict', 'wallet_closed', 'wallet_expired', 'insufficient_funds', 'account_suspended'],
  example: {
    body: { name: 'research agent', budget_cents: 500, expires_in_seconds: 86400 },
    answer: {
      id: ID,
      status: 'active',
      agent_token: 'svc_agent_…',
      env: { SVC_BROKER_URL: 'http://127.0.0.1:7420', SVC_BROKER_TOKEN: 'svc_agent_…' },
    },
  },
  async run(app, { principal, body, raw, idempotencyKey, requestId }) {
    const { wallet, token, isNew } = await open(app, {
      accountId: principal.accountId,
      name: body.name,
      parentId: null,
      budget: centsToNanos(body.budget_cents),
      expiresInSeconds: body.expires_in_seconds,
      idempotencyKey,
      fingerprint: fingerprint(raw),
      requestId,
    });
    return { body: allocation(wallet, token, app.state.baseUrl), replayed: !isNew };
  },
});

export const readWallet = endpoint({
  summary: 'Read a wallet, closed ones included',
  scope: 'account',
  answer: WalletRecord,
  refusals: ['not_found'],
  example: { answer: EXAMPLE },
  run: (app, call) => ({ body: recordOf(app, namedIn(app, call)) }),
});

export const readWalletToken = endpoint({
  summary: 'Read the credential of an active wallet once more',
  scope: 'account',
  answer: WalletToken,
  refusals: ['not_found', 'wallet_closed', 'wallet_expired'],
  example: { answer: { agent_token: 'svc_agent_…' } },
  run(app, call) {
    const wallet = namedIn(app, call);
    refuseInactive(app.ledger.read, wallet, app.clock.now());
    return { body: { agent_token: walletToken(app.keyring, wallet) } };
  },
});

export const closeWallet = endpoint({
  summary: 'Close a wallet: end its spending, clean up, settle, and return what is left; repeat until 200',
  scope: 'account',
  answer: WalletRecord,
  refusals: ['not_found', 'cleanup_pending'],
  example: {
    answer: {
      ...EXAMPLE,
      status: 'closed',
      returned_cents: 487,
      available_usd: '0.00',
      closed_at: 1795000500,
      close_reason: 'account_request',
    },
  },
  async run(app, call) {
    const wallet = await close(app, namedIn(app, call).id, 'account_request');
    if (wallet.status !== 'closed') throw new Refusal('cleanup_pending', undefined, { retryAfterSeconds: 5 });
    return { body: recordOf(app, wallet) };
  },
});

export const changeBudget = endpoint({
  summary: 'Raise a wallet’s budget, or lower it to at most what is spent, held and delegated',
  scope: 'account',
  idempotent: true,
  body: BudgetRequest,
  answer: WalletRecord,
  refusals: [
    'not_found',
    'idempotency_conflict',
    'wallet_closed',
    'wallet_expired',
    'insufficient_funds',
    'funds_held',
    'account_suspended',
  ],
  example: {
    body: { add_cents: 500 },
    answer: { ...EXAMPLE, budget_cents: 1000, budget_usd: '10.00', available_usd: '9.8797' },
  },
  run: async (app, call) =>
    answered(app, await changeWalletBudget(app, { ...changeIn(app, call, 'budget'), cents: call.body.add_cents })),
});

export const extendWallet = endpoint({
  summary: 'Move a wallet’s expiry further',
  scope: 'account',
  idempotent: true,
  body: ExtendRequest,
  answer: WalletRecord,
  refusals: ['not_found', 'idempotency_conflict', 'wallet_closed', 'wallet_expired', 'wallet_limit_exceeded'],
  example: { body: { seconds: 86400 }, answer: { ...EXAMPLE, expires_at: 1795172800 } },
  run: async (app, call) =>
    answered(app, await extend(app, { ...changeIn(app, call, 'extend'), seconds: call.body.seconds })),
});

export const freezeWallet = endpoint({
  summary: 'Freeze a wallet and all below it: no new holds, while reads, stops and settlements go on',
  scope: 'account',
  body: FreezeRequest,
  isBodyOptional: true,
  answer: WalletRecord,
  refusals: ['not_found', 'wallet_closed', 'wallet_expired'],
  example: {
    body: { reason: 'loops' },
    answer: { ...EXAMPLE, frozen_at: 1795000500, freeze_reason: 'loops' },
  },
  run: async (app, call) => ({
    body: recordOf(app, await freeze(app, namedIn(app, call).id, true, call.body.reason ?? null)),
  }),
});

export const unfreezeWallet = endpoint({
  summary: 'Unfreeze a wallet',
  scope: 'account',
  answer: WalletRecord,
  refusals: ['not_found', 'wallet_closed', 'wallet_expired'],
  example: { answer: EXAMPLE },
  run: async (app, call) => ({
    body: recordOf(app, await freeze(app, namedIn(app, call).id, false)),
  }),
});

export const setRefill = endpoint({
  summary: 'Refill a wallet at every midnight, Monday or first of the month of a time zone',
  scope: 'account',
  body: RefillRequest,
  answer: WalletRecord,
  refusals: ['not_found', 'wallet_closed', 'wallet_expired'],
  example: {
    body: { cents: 500, every: 'day', zone: 'Europe/Berlin' },
    answer: {
      ...EXAMPLE,
      refill: { cents: 500, every: 'day', zone: 'Europe/Berlin', carry: 'none', next_at: 1795042800 },
    },
  },
  run: async (app, call) => ({
    body: recordOf(app, await refill(app, namedIn(app, call).id, call.body)),
  }),
});

export const endRefill = endpoint({
  summary: 'End the refills of a wallet',
  scope: 'account',
  answer: WalletRecord,
  refusals: ['not_found', 'wallet_closed', 'wallet_expired'],
  example: { answer: EXAMPLE },
  run: async (app, call) => ({
    body: recordOf(app, await refill(app, namedIn(app, call).id, null)),
  }),
});
