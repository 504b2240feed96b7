import * as v from 'valibot';
import { walletToken } from '../access/keyring.ts';
import { listRouterKeys } from '../access/router-keys.ts';
import { fingerprint } from '../fingerprint.ts';
import { newId } from '../id.ts';
import { accountOf } from '../ledger/account.ts';
import { openOperations } from '../ledger/operation.ts';
import { timeline } from '../ledger/timeline.ts';
import { findWallet, listWallets, refuseInactive, type Wallet } from '../ledger/wallet.ts';
import { Refusal } from '../refusal.ts';
import { close } from '../wallet/close.ts';
import { open } from '../wallet/open.ts';
import { operationRecord, timelineStep } from '../wire/operation.ts';
import { routerKeyRecord } from '../wire/router.ts';
import { allocation, WalletRequest, walletRecord } from '../wire/wallet.ts';
import { command, Id, NOTHING, type OperatorApp } from './command.ts';

function walletWith(app: OperatorApp, id: string): Wallet {
  const wallet = findWallet(app.ledger.read, id);
  if (!wallet) throw new Refusal('not_found', `There is no wallet ${id}.`);
  return wallet;
}

/** The wallet record with its account. */
const record = (app: OperatorApp, wallet: Wallet) => ({
  ...walletRecord(wallet, app.clock.now()),
  account_id: wallet.accountId,
});

export const wallets = {
  'wallet.create': command(
    v.strictObject({ account: Id, ...WalletRequest.entries }),
    async (app, { account, ...body }) => {
      const requestId = newId('req');
      const { wallet, token } = await open(app, {
        accountId: accountOf(app.ledger.read, account).id,
        name: body.name,
        budgetCents: body.budget_cents,
        expiresInSeconds: body.expires_in_seconds,
        idempotencyKey: requestId, // Each command at the terminal is a new request.
        fingerprint: fingerprint(body),
        requestId,
      });
      return allocation(wallet, token, app.state.baseUrl, app.clock.now());
    },
  ),
  'wallet.list': command(NOTHING, (app) => ({ wallets: listWallets(app.ledger.read).map((it) => record(app, it)) })),
  'wallet.show': command(v.strictObject({ id: Id }), (app, { id }) => record(app, walletWith(app, id))),
  'wallet.token': command(v.strictObject({ id: Id }), (app, { id }) => {
    const wallet = walletWith(app, id);
    refuseInactive(wallet, app.clock.now());
    return { agent_token: walletToken(app.keyring, wallet) };
  }),
  'wallet.gateway-keys': command(v.strictObject({ id: Id }), (app, { id }) => ({
    keys: listRouterKeys(app.ledger.read, walletWith(app, id).id).map(routerKeyRecord),
  })),
  /** Makes one attempt of at most `close_wait_seconds`; `purser wallet close --wait` repeats it. */
  'wallet.close': command(v.strictObject({ id: Id }), async (app, { id }) => {
    const wallet = await close(app, walletWith(app, id).id, 'operator');
    if (wallet.status !== 'closed')
      throw new Refusal(
        'cleanup_pending',
        `The wallet ${id} is frozen; its cleanup goes on: ${wallet.cleanupError ?? 'requests are in flight'}. What a backend said: purser resource list`,
      );
    return record(app, wallet);
  }),
  'wallet.timeline': command(v.strictObject({ id: Id }), (app, { id }) => {
    const wallet = walletWith(app, id);
    return {
      wallet: record(app, wallet),
      steps: timeline(app.ledger.read, wallet).map(timelineStep),
      open: openOperations(app.ledger.read, id).map(operationRecord),
    };
  }),
};
