import { walletToken } from '../../access/keyring.ts';
import { fingerprint } from '../../fingerprint.ts';
import { refuseInactive, walletOf, listWallets as walletsOf } from '../../ledger/wallet.ts';
import { Refusal } from '../../refusal.ts';
import { close } from '../../wallet/close.ts';
import { open } from '../../wallet/open.ts';
import {
  Allocation,
  allocation,
  WalletList,
  WalletRecord,
  WalletRequest,
  WalletToken,
  walletRecord,
} from '../../wire/wallet.ts';
import { endpoint } from '../endpoint.ts';

const ID = 'wal_01k9v3c2mq8r5t7w1x4z6b0d2f';
const EXAMPLE = {
  id: ID,
  name: 'research agent',
  status: 'active',
  budget_cents: 500,
  used_cents: 13,
  returned_cents: null,
  budget_usd: '5.00',
  used_usd: '0.1203',
  held_usd: '0.00',
  available_usd: '4.8797',
  created_at: 1795000000,
  expires_at: 1795086400,
  closed_at: null,
  close_reason: null,
  cleanup: { pending: false, attempts: 0, last_error: null },
  token_hint: 'x9Q2',
};

export const listWallets = endpoint({
  summary: 'List the latest 100 wallets of the account',
  scope: 'account',
  answer: WalletList,
  example: { answer: { wallets: [EXAMPLE] } },
  run(app, { principal }) {
    const now = app.clock.now();
    return { body: { wallets: walletsOf(app.ledger.read, principal.accountId).map((it) => walletRecord(it, now)) } };
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
      budgetCents: body.budget_cents,
      expiresInSeconds: body.expires_in_seconds,
      idempotencyKey,
      fingerprint: fingerprint(raw),
      requestId,
    });
    return { body: allocation(wallet, token, app.state.baseUrl, app.clock.now()), replayed: !isNew };
  },
});

export const readWallet = endpoint({
  summary: 'Read a wallet, closed ones included',
  scope: 'account',
  answer: WalletRecord,
  refusals: ['not_found'],
  example: { answer: EXAMPLE },
  run: (app, { principal, params }) => ({
    body: walletRecord(walletOf(app.ledger.read, principal.accountId, params.id as string), app.clock.now()),
  }),
});

export const readWalletToken = endpoint({
  summary: 'Read the credential of an active wallet once more',
  scope: 'account',
  answer: WalletToken,
  refusals: ['not_found', 'wallet_closed', 'wallet_expired'],
  example: { answer: { agent_token: 'svc_agent_…' } },
  run(app, { principal, params }) {
    const wallet = walletOf(app.ledger.read, principal.accountId, params.id as string);
    refuseInactive(wallet, app.clock.now());
    return { body: { agent_token: walletToken(app.keyring, wallet) } };
  },
});

export const closeWallet = endpoint({
  summary: 'Freeze a wallet, clean up, settle, and return what is left; repeat until 200',
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
  async run(app, { principal, params }) {
    const { id } = walletOf(app.ledger.read, principal.accountId, params.id as string);
    const wallet = await close(app, id, 'account_request');
    if (wallet.status !== 'closed') throw new Refusal('cleanup_pending', undefined, { retryAfterSeconds: 5 });
    return { body: walletRecord(wallet, app.clock.now()) };
  },
});
