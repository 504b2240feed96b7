import * as v from 'valibot';
import { fingerprint } from '../../base/fingerprint.ts';
import { Refusal } from '../../base/refusal.ts';
import { WALLET_STATUSES } from '../../db/enums.ts';
import { EXAMINED_COUNT, searchOperations } from '../../ledger/operation-search.ts';
import { findWallet, lineage, listWallets, type Wallet } from '../../ledger/wallet.ts';
import { close } from '../../wallet/close.ts';
import { open } from '../../wallet/open.ts';
import { OPERATION_FILTERS, operationFilter, RunOperations, runOperation } from '../../wire/operation.ts';
import { numberInQuery } from '../../wire/parts.ts';
import { periodOf } from '../../wire/period.ts';
import {
  Allocation,
  allocation,
  ChildRequest,
  RunClosed,
  WalletList,
  WalletRecord,
  walletRecord,
} from '../../wire/wallet.ts';
import { endpoint, type HttpApp } from '../endpoint.ts';
import { PAGE_QUERY, pageOf, statusQuery } from '../page.ts';
import { EXAMPLE, recordOf } from './wallets.ts';

const { id: ID } = EXAMPLE;

export const closeRun = endpoint({
  summary: 'Close this wallet: end its spending and clean up; repeat until 200',
  scope: 'wallet',
  answer: RunClosed,
  refusals: ['cleanup_pending'],
  example: { answer: { wallet_id: ID, status: 'closed', cleanup: { pending: false, attempts: 0, last_error: null } } },
  async run(app, { principal }) {
    const wallet = await close(app, principal.wallet.id, 'agent_request');
    if (wallet.status !== 'closed') throw new Refusal('cleanup_pending', undefined, { retryAfterSeconds: 5 });
    const { id, status, cleanup } = recordOf(app, wallet);
    return { body: { wallet_id: id, status, cleanup } };
  },
});

const CHILD = {
  ...EXAMPLE,
  id: 'wal_01k9v3d2mq8r5t7w1x4z6b0d2g',
  name: 'sub-agent',
  parent_id: ID,
  budget_cents: 100,
  budget_usd: '1.00',
  used_cents: 0,
  used_usd: '0.00',
  held_usd: '0.00',
  available_usd: '1.00',
};

export const createChild = endpoint({
  summary: 'Hand part of the wallet’s budget to a child wallet with a token of its own',
  scope: 'wallet',
  idempotent: true,
  body: ChildRequest,
  status: 201,
  answer: Allocation,
  refusals: [
    'idempotency_conflict',
    'wallet_closed',
    'wallet_expired',
    'wallet_frozen',
    'wallet_limit_exceeded',
    'account_suspended',
    'insufficient_funds',
    'funds_held',
  ],
  example: {
    body: { name: 'sub-agent', budget_usd: '1.00', expires_in_seconds: 3600 },
    answer: {
      id: CHILD.id,
      status: 'active',
      agent_token: 'svc_agent_…',
      env: { SVC_BROKER_URL: 'http://127.0.0.1:7420', SVC_BROKER_TOKEN: 'svc_agent_…' },
    },
  },
  async run(app, { principal, body, raw, idempotencyKey, requestId }) {
    const { wallet, token, isNew } = await open(app, {
      accountId: principal.wallet.accountId,
      parentId: principal.wallet.id,
      name: body.name,
      budget: body.budget_usd,
      expiresInSeconds: body.expires_in_seconds,
      idempotencyKey,
      fingerprint: fingerprint(raw),
      requestId,
    });
    return { body: allocation(wallet, token, app.state.baseUrl), replayed: !isNew };
  },
});

/** Unix seconds, which an operation began at or after, or before. */
const SECONDS = v.optional(numberInQuery(0, 10 ** 12));

export const listRunOperations = endpoint({
  summary: 'List what the wallet and its children paid for, newest first, by pages of 100',
  scope: 'wallet',
  query: v.strictObject({ ...PAGE_QUERY, ...OPERATION_FILTERS, since: SECONDS, until: SECONDS }),
  answer: RunOperations,
  refusals: ['invalid_cursor'],
  example: {
    answer: {
      operations: [
        {
          id: 'op_01k9v3c2mq8r5t7w1x4z6b0d2f',
          wallet_id: CHILD.id,
          kind: 'chat',
          subject: 'qwen3-8b',
          state: 'settled',
          outcome: 'charged',
          settled_by: 'answer',
          tags: { team: 'search' },
          hold_usd: '0.002',
          charge_usd: '0.0004',
          usage: { prompt_tokens: 12, completion_tokens: 30 },
          request_id: 'req_01k9v3c2mq8r5t7w1x4z6b0d2f',
          created_at: 1795000300,
          uncertain_at: null,
          settled_at: 1795000301,
        },
      ],
      next_cursor: '',
    },
  },
  async run(app, { principal, query, whenGone }) {
    const period = periodOf(query as { since?: number; until?: number });
    const { before: after, limit } = pageOf(query, 'op');
    const filter = { ...operationFilter(query), rootId: principal.wallet.id, ...period };
    const gone = new AbortController();
    whenGone(() => gone.abort());
    const order = { after, limit, examinedMax: EXAMINED_COUNT, signal: gone.signal };
    const { operations, goesOnAfter } = await searchOperations(app.ledger.read, filter, order);
    return { body: { operations: operations.map(runOperation), next_cursor: goesOnAfter ?? '' } };
  },
});

export const listRunWallets = endpoint({
  summary: 'List the children of the wallet, newest first, at most 100; `before` gives the next page',
  scope: 'wallet',
  query: v.strictObject({ ...PAGE_QUERY, status: statusQuery(WALLET_STATUSES) }),
  answer: WalletList,
  refusals: ['invalid_cursor'],
  example: { answer: { wallets: [CHILD] } },
  run(app, { principal, query }) {
    const now = app.clock.now();
    const filter = { parentId: principal.wallet.id, status: query.status as Wallet['status'] | undefined, now };
    const page = listWallets(app.ledger.read, filter, pageOf(query, 'wal'));
    return { body: { wallets: page.map((it) => walletRecord(app.ledger.read, it, now)) } };
  },
});

export const readChild = endpoint({
  summary: 'Read a wallet below this one, closed ones included',
  scope: 'wallet',
  answer: WalletRecord,
  refusals: ['not_found'],
  example: { answer: CHILD },
  run: (app, { principal, params }) => ({
    body: recordOf(app, walletBelow(app, principal.wallet, params.id as string)),
  }),
});

export const closeChild = endpoint({
  summary: 'Close a wallet below this one: clean up, settle, and return what is left to its parent; repeat until 200',
  scope: 'wallet',
  answer: WalletRecord,
  refusals: ['not_found', 'cleanup_pending'],
  example: {
    answer: { ...CHILD, status: 'closed', returned_cents: 100, closed_at: 1795000500, close_reason: 'agent_request' },
  },
  async run(app, { principal, params }) {
    const { id } = walletBelow(app, principal.wallet, params.id as string);
    const wallet = await close(app, id, 'agent_request');
    if (wallet.status !== 'closed') throw new Refusal('cleanup_pending', undefined, { retryAfterSeconds: 5 });
    return { body: recordOf(app, wallet) };
  },
});

/** Returns a wallet somewhere below this one. Throws `not_found` alike for every other (design 2.5). */
function walletBelow(app: Pick<HttpApp, 'ledger'>, above: Pick<Wallet, 'id'>, id: string): Wallet {
  const wallet = findWallet(app.ledger.read, id);
  const isBelow = wallet && wallet.id !== above.id && lineage(app.ledger.read, wallet).some((it) => it.id === above.id);
  if (!isBelow) throw new Refusal('not_found', 'There is no such wallet below this one.');
  return wallet;
}
