import * as v from 'valibot';
import { generateMasterKey, parseMasterKey } from '../access/master-key.ts';
import { rotate } from '../access/rotation.ts';
import { Refusal } from '../refusal.ts';
import { command } from './command.ts';

export const masterKey = {
  /**
   * A fresh master key, or the one that is given. It is in force at once. Printed is only a key that was made here and
   * whose place is the operator's to write: nobody else has it.
   */
  'master-key.rotate': command(v.strictObject({ key: v.optional(v.string()) }), (app, { key }) =>
    app.leaseMutex('master key', async () => {
      const next = key === undefined ? generateMasterKey() : given(key);
      const { id: previous } = app.keyring.current;
      const { from, path } = app.keyPlace;
      await rotate(app, next, app.clock.now());
      app.events.rotated(previous, next.id, from);
      return {
        master_key_id: next.id,
        previous_master_key_id: previous,
        from,
        file: path ?? null,
        is_in_place: app.keyring.given.id === next.id,
        key: key === undefined && app.keyring.given.id !== next.id ? next.key.toString('hex') : null,
      };
    }),
  ),
};

function given(text: string) {
  try {
    return parseMasterKey(text, 'the file');
  } catch (error) {
    throw new Refusal('invalid_request', (error as Error).message);
  }
}
