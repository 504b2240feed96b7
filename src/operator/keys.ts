import * as v from 'valibot';
import { createKey, type Key, listKeys, listOperatorKeys, revokeKey } from '../access/keys.ts';
import { revokeRouterKey } from '../access/router-keys.ts';
import { accountOf } from '../ledger/account.ts';
import { installationOf } from '../ledger/installation.ts';
import { Refusal } from '../refusal.ts';
import { keyRecord, revokedKey } from '../wire/key.ts';
import { command, Id, NOTHING, type OperatorApp } from './command.ts';

/** The `minted_by` of keys that were minted at the terminal rather than by a key. */
const BY_CLI = 'cli';

async function mint(app: OperatorApp, kind: Key['kind'], accountId: string, name: string) {
  const now = app.clock.now();
  const { key, token } = await app.ledger.write((tx) =>
    createKey(tx, { kind, accountId, name, mintedBy: BY_CLI }, now),
  );
  return { id: key.id, name: key.name, account_id: key.accountId, key: token };
}

async function revoke(app: OperatorApp, kind: Key['kind'], id: string) {
  const now = app.clock.now();
  return revokedKey(await app.ledger.write((tx) => revokeKey(tx, id, kind, now)));
}

/** A key in the operator's view. Keys outlive the operator key that minted them, so the list names it (design 2.12). */
const record = (key: Key) => ({ ...keyRecord(key), account_id: key.accountId, minted_by: key.mintedBy });

export const keys = {
  'operator-key.mint': command(
    v.strictObject({ account: v.optional(Id), name: v.optional(v.string(), 'operator') }),
    (app, { account, name }) => {
      const accountId = account ?? installationOf(app.ledger.read).defaultAccountId;
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
  'key.create': command(v.strictObject({ account: Id, name: v.string() }), (app, { account, name }) =>
    mint(app, 'account', account, name),
  ),
  'key.list': command(v.strictObject({ account: Id }), (app, { account }) => ({
    keys: listKeys(app.ledger.read, accountOf(app.ledger.read, account).id).map(record),
  })),
  /** Takes the id of an account key or of a gateway key. */
  'key.revoke': command(v.strictObject({ id: Id }), async (app, { id }) => {
    const now = app.clock.now();
    const gatewayKey = await app.ledger.write((tx) => revokeRouterKey(tx, id, now));
    return gatewayKey ? revokedKey(gatewayKey) : revoke(app, 'account', id);
  }),
};
