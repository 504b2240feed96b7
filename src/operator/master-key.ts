import * as v from 'valibot';
import { generateMasterKey, parseMasterKey } from '../access/master-key.ts';
import { rotate } from '../access/rotation.ts';
import { Refusal } from '../base/refusal.ts';
import { command } from './command.ts';

export const masterKey = {
  /**
   * Rotates at once to `key`, or to a fresh master key. `kept` is the file with the previous key. The answer contains a generated
   * key only if the operator has to put it in place: no other copy exists.
   */
  'master-key.rotate': command(v.strictObject({ key: v.optional(v.string()) }), (app, { key }) =>
    app.leaseMutex('master key', async () => {
      const next = key === undefined ? generateMasterKey() : given(key);
      const { id: previous } = app.keyring.current;
      const { from, path } = app.keySource;
      const kept = await rotate(app, next, app.clock.now());
      app.events.rotated(previous, next.id, from);
      return {
        master_key_id: next.id,
        previous_master_key_id: previous,
        from,
        file: path ?? null,
        kept,
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
