import * as v from 'valibot';
import { routerCredential, routerToken, walletToken } from '../access/keyring.ts';
import { listRouterKeys } from '../access/router-keys.ts';
import { openRouterKey } from '../access/writes.ts';
import { fingerprint } from '../base/fingerprint.ts';
import { newId } from '../base/id.ts';
import { centsToNanos, Nanos, nanosToCentsDown } from '../base/money.ts';
import { Refusal } from '../base/refusal.ts';
import { WALLET_STATUSES } from '../db/enums.ts';
import { openOperations } from '../ledger/operation.ts';
import { timeline } from '../ledger/timeline.ts';
import { countWallets, listWallets, openWalletsOf, refuseInactive, statusAt, type Wallet } from '../ledger/wallet.ts';
import { changeWalletBudget, extend, freeze, refill } from '../wallet/change.ts';
import { close } from '../wallet/close.ts';
import { open } from '../wallet/open.ts';
import { firstChatModel } from '../wire/client-settings.ts';
import { operationRecord, timelineStep } from '../wire/operation.ts';
import { routerKeyRecord } from '../wire/router.ts';
import {
  allocation,
  BudgetRequest,
  ExtendRequest,
  RefillRequest,
  WalletRequest,
  walletRecord,
} from '../wire/wallet.ts';
import { command, Id, type OperatorApp, PAGE, Reason } from './command.ts';
import { accountWith, walletWith as findByText, pageAfter } from './find.ts';

const walletWith = (app: OperatorApp, text: string): Wallet => findByText(app.ledger.read, text);

/** The wallet record with its account. */
const record = (app: OperatorApp, wallet: Wallet) => ({
  ...walletRecord(app.ledger.read, wallet, app.clock.now()),
  account_id: wallet.accountId,
});

/** Freezes or unfreezes wallets. One that has ended since they were listed is left out. */
async function freezeEach(app: OperatorApp, wallets: readonly Wallet[], isFrozen: boolean, reason: string | null) {
  const done = await Promise.allSettled(wallets.map(({ id }) => freeze(app, id, isFrozen, reason)));
  return done.flatMap((it) => {
    if (it.status === 'fulfilled') return [record(app, it.value)];
    const { code } = it.reason as Refusal;
    if (code !== 'wallet_closed' && code !== 'wallet_expired') throw it.reason;
    return [];
  });
}

const Key = v.optional(v.pipe(v.string(), v.minLength(1), v.maxLength(128)));

/** Returns a change by the operator; a key makes it safe to repeat. */
const changeOf = (app: OperatorApp, id: string, key: string | undefined, body: object) => ({
  walletId: walletWith(app, id).id,
  idempotencyKey: key ?? null,
  fingerprint: fingerprint(body),
  requestId: newId('req'),
});

export const wallets = {
  'wallet.create': command(
    v.strictObject({ account: Id, key: Key, ...WalletRequest.entries }),
    async (app, { account, key, ...body }) => {
      const requestId = newId('req');
      const { wallet, token } = await open(app, {
        accountId: accountWith(app.ledger.read, account).id,
        name: body.name,
        parentId: null,
        budget: centsToNanos(body.budget_cents),
        expiresInSeconds: body.expires_in_seconds,
        idempotencyKey: key ?? requestId, // Without a key, as at the terminal, each command is a new request.
        fingerprint: fingerprint(body),
        requestId,
      });
      return { ...allocation(wallet, token, app.state.baseUrl), expires_at: wallet.expiresAt };
    },
  ),
  /** Lists wallets, newest first. `total` counts all pages. */
  'wallet.list': command(
    v.strictObject({
      account: v.optional(Id),
      status: v.optional(v.picklist(WALLET_STATUSES, `must be one of ${WALLET_STATUSES.join(', ')}`)),
      ...PAGE,
    }),
    (app, { account, status, since, ...page }) => {
      const { read } = app.ledger;
      const accountId = account === undefined ? undefined : accountWith(read, account).id;
      const filter = { accountId, status, since, now: app.clock.now() };
      return {
        wallets: listWallets(read, filter, pageAfter(read, page, findByText)).map((it) => record(app, it)),
        total: countWallets(read, filter),
      };
    },
  ),
  'wallet.show': command(v.strictObject({ id: Id }), (app, { id }) => record(app, walletWith(app, id))),
  'wallet.token': command(v.strictObject({ id: Id }), (app, { id }) => {
    const wallet = walletWith(app, id);
    refuseInactive(app.ledger.read, wallet, app.clock.now());
    return { agent_token: walletToken(app.keyring, wallet) };
  }),
  'wallet.gateway-keys': command(v.strictObject({ id: Id }), (app, { id }) => ({
    keys: listRouterKeys(app.ledger.read, walletWith(app, id).id).map(routerKeyRecord),
  })),
  /**
   * Returns the settings of a client of models: a gateway key of the wallet, its base URL, and a chat model: the named one, the
   * first, or null. Throws `model_not_found` for a named model that is missing, or not for chats.
   */
  'wallet.gateway-key': command(
    v.strictObject({ id: Id, model: v.optional(v.string()) }),
    async (app, { id, model: modelId }) => {
      const wallet = walletWith(app, id);
      const now = app.clock.now();
      refuseInactive(app.ledger.read, wallet, now); // The master key of a closed one may be gone.
      const model = modelId === undefined ? firstChatModel(app.catalogue) : app.catalogue.find(modelId, 'chat');
      const order = { walletId: wallet.id, options: {}, fresh: routerCredential(app.keyring, wallet) };
      const { key, isNew } = await app.ledger.write(openRouterKey, { order, now });
      if (isNew) app.events.routerKeyOpened(key);
      return {
        api_key: routerToken(app.keyring, key),
        base_url: `${app.state.baseUrl}/v1/router`,
        model: model
          ? { id: model.id, context_length: model.contextLength, max_output_tokens: model.maxOutputTokens }
          : null,
      };
    },
  ),
  /**
   * Raises the budget, or lowers it by negative cents to at most what is spent, held and delegated. `moved_cents` is the
   * number of cents by which it changed, above 0 either way.
   */
  'wallet.budget': command(
    v.strictObject({ id: Id, key: Key, ...BudgetRequest.entries }),
    async (app, { id, key, add_cents: cents }) => {
      const order = changeOf(app, id, key, { budget: { add_cents: cents } });
      const {
        wallet,
        change: { amount },
      } = await changeWalletBudget(app, { ...order, cents });
      return { ...record(app, wallet), moved_cents: nanosToCentsDown(Nanos(amount < 0n ? -amount : amount)) };
    },
  ),
  'wallet.extend': command(
    v.strictObject({ id: Id, key: Key, ...ExtendRequest.entries }),
    async (app, { id, key, seconds }) => {
      const order = changeOf(app, id, key, { extend: { seconds } });
      return record(app, (await extend(app, { ...order, seconds })).wallet);
    },
  ),
  'wallet.freeze': command(v.strictObject({ id: Id, reason: v.optional(Reason) }), async (app, { id, reason }) =>
    record(app, await freeze(app, walletWith(app, id).id, true, reason ?? null)),
  ),
  'wallet.unfreeze': command(v.strictObject({ id: Id }), async (app, { id }) =>
    record(app, await freeze(app, walletWith(app, id).id, false)),
  ),
  'wallet.refill': command(
    v.strictObject({ id: Id, refill: v.nullable(RefillRequest) }),
    async (app, { id, refill: order }) => record(app, await refill(app, walletWith(app, id).id, order)),
  ),
  /** Freezes all wallets of an account that may spend. */
  'wallet.freeze-account': command(
    v.strictObject({ account: Id, reason: v.optional(Reason) }),
    async (app, { account, reason }) => {
      const open = openWalletsOf(app.ledger.read, accountWith(app.ledger.read, account).id);
      const active = open.filter((it) => statusAt(app.ledger.read, it, app.clock.now()) === 'active');
      return { wallets: await freezeEach(app, active, true, reason ?? null) };
    },
  ),
  /** Unfreezes all wallets of an account that are frozen, children included. */
  'wallet.unfreeze-account': command(v.strictObject({ account: Id }), async (app, { account }) => {
    const accountId = accountWith(app.ledger.read, account).id;
    const filter = { accountId, isFrozen: true, status: 'active' as const, now: app.clock.now() };
    const frozen = listWallets(app.ledger.read, filter, { limit: countWallets(app.ledger.read, filter) });
    return { wallets: await freezeEach(app, frozen, false, null) };
  }),
  /** Makes one attempt to close every wallet of an account. A wallet may still be closing after it. */
  'wallet.close-account': command(v.strictObject({ account: Id }), async (app, { account }) => {
    const open = openWalletsOf(app.ledger.read, accountWith(app.ledger.read, account).id);
    const closed = await Promise.all(open.map(({ id }) => close(app, id, 'operator')));
    return { wallets: closed.map((it) => record(app, it)) };
  }),
  /** Makes one attempt of at most `close_wait_seconds`; `purser wallet close --wait` repeats it. */
  'wallet.close': command(v.strictObject({ id: Id }), async (app, { id: text }) => {
    const { id } = walletWith(app, text);
    const wallet = await close(app, id, 'operator');
    if (wallet.status !== 'closed')
      throw new Refusal(
        'cleanup_pending',
        `The wallet ${id} is closing; its cleanup goes on: ${wallet.cleanupError ?? 'requests are in flight'}. \`purser resource list\` shows what a backend said.`,
      );
    return record(app, wallet);
  }),
  'wallet.timeline': command(v.strictObject({ id: Id }), async (app, { id }) => {
    const wallet = walletWith(app, id);
    // First, as the steps end with what was newest when they were begun.
    const shown = record(app, wallet);
    const open = openOperations(app.ledger.read, wallet.id).map(operationRecord);
    const steps: ReturnType<typeof timelineStep>[] = [];
    for await (const step of timeline(app.ledger.read, wallet)) steps.push(timelineStep(step));
    return { wallet: shown, steps, open };
  }),
};
