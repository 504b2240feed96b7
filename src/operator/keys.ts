import * as v from 'valibot';
import { countKeys, type Key, listKeys, listOperatorKeys } from '../access/keys.ts';
import * as writes from '../access/writes.ts';
import { Refusal } from '../base/refusal.ts';
import { installationOf } from '../ledger/installation.ts';
import { keyRecord, revokedKey } from '../wire/key.ts';
import { name } from '../wire/parts.ts';
import { command, Id, NOTHING, type OperatorApp, PAGE } from './command.ts';
import { accountWith, keyIdWith, keyWith, pageAfter } from './find.ts';

/** The `minted_by` of keys that were minted at the terminal rather than by a key. */
const BY_CLI = 'cli';

async function mint(app: OperatorApp, kind: Key['kind'], accountId: string, name: string) {
  const now = app.clock.now();
  const order = { kind, accountId, name, mintedBy: BY_CLI };
  const { key, token } = await app.ledger.write(writes.createKey, { order, now });
  return { id: key.id, name: key.name, account_id: key.accountId, key: token };
}

async function revoke(app: OperatorApp, kind: Key['kind'], text: string, accountId?: string) {
  const id = keyIdWith(app.ledger.read, text);
  const now = app.clock.now();
  return revokedKey(await app.ledger.write(writes.revokeKey, { id, kind, now, ...(accountId ? { accountId } : {}) }));
}

/** A key in the operator's view. Keys outlive the operator key that minted them, so the list names it (design 2.12). */
const record = (key: Key) => ({ ...keyRecord(key), account_id: key.accountId, minted_by: key.mintedBy });

export const keys = {
  'operator-key.mint': command(
    v.strictObject({ account: v.optional(Id), name: v.optional(name(), 'operator') }),
    (app, { account, name }) => {
      const accountId =
        account === undefined
          ? installationOf(app.ledger.read).defaultAccountId
          : accountWith(app.ledger.read, account).id;
      if (accountId === null)
        throw new Refusal(
          'not_found',
          'There is no default account yet. Start `purser serve` once, or give --account.',
        );
      return mint(app, 'operator', accountId, name);
    },
  ),
  'operator-key.list': command(NOTHING, (app) => ({ keys: listOperatorKeys(app.ledger.read).map(record) })),
  'operator-key.revoke': command(v.strictObject({ id: Id }), (app, { id }) => revoke(app, 'operator', id)),
  'key.create': command(v.strictObject({ account: Id, name: name() }), (app, { account, name }) =>
    mint(app, 'account', accountWith(app.ledger.read, account).id, name),
  ),
  'key.list': command(
    v.strictObject({ account: Id, before: PAGE.before, limit: PAGE.limit }),
    ({ ledger: { read } }, { account, ...page }) => {
      const { id } = accountWith(read, account);
      return { keys: listKeys(read, id, pageAfter(read, page, keyWith)).map(record), total: countKeys(read, id) };
    },
  ),
  /** Takes the id of an account key, which must belong to `account` if that is given, or of a gateway key. */
  'key.revoke': command(v.strictObject({ id: Id, account: v.optional(Id) }), async (app, { id: text, account }) => {
    if (account !== undefined) return revoke(app, 'account', text, accountWith(app.ledger.read, account).id);
    const now = app.clock.now();
    const id = keyIdWith(app.ledger.read, text);
    const gatewayKey = await app.ledger.write(writes.revokeRouterKey, { id, now });
    return gatewayKey ? revokedKey(gatewayKey) : revoke(app, 'account', id);
  }),
};
