import * as v from 'valibot';
import { listPasskeys, type Passkey } from '../access/passkeys.ts';
import { removePasskey } from '../access/writes.ts';
import { command, Id, NOTHING } from './command.ts';
import { passkeyIdWith } from './find.ts';

const record = (it: Passkey) => ({
  id: it.id,
  name: it.name,
  origin: it.origin,
  created_at: it.createdAt,
  last_used_at: it.lastUsedAt,
  removed_at: it.removedAt,
});

export const passkeys = {
  'passkey.list': command(NOTHING, ({ ledger }) => ({ passkeys: listPasskeys(ledger.read).map(record) })),
  /** Ends the sessions that it opened too. */
  'passkey.remove': command(v.strictObject({ id: Id }), async (app, { id: text }) => {
    const id = passkeyIdWith(app.ledger.read, text);
    const passkey = await app.ledger.write(removePasskey, { id, now: app.clock.now() });
    app.events.passkeyRemoved(passkey);
    return record(passkey);
  }),
};
