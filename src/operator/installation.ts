import * as v from 'valibot';
import { Refusal } from '../base/refusal.ts';
import { headOf } from '../ledger/head.ts';
import { freeze, type Installation } from '../ledger/installation.ts';
import { command, NOTHING, Reason } from './command.ts';

const record = (it: Installation) => ({
  installation_id: it.installationId,
  frozen: it.frozenAt !== null,
  frozen_at: it.frozenAt,
  freeze_reason: it.freezeReason,
});

export const installation = {
  freeze: command(v.strictObject({ reason: v.optional(Reason) }), async (app, { reason }) => {
    const at = app.clock.now();
    return record(await app.ledger.write(freeze, { at, reason: reason ?? null }));
  }),
  unfreeze: command(NOTHING, async (app) => record(await app.ledger.write(freeze, { at: null, reason: null }))),
  reload: command(NOTHING, (app) => {
    if (!app.reload) throw new Refusal('read_only', 'This process does not serve: there is nothing to reload.');
    return app.reload();
  }),
  /** Makes a backup in the directory of the settings, apart from those that are planned. */
  'backup.now': command(NOTHING, async (app) => {
    if (!app.backUpNow) throw new Refusal('read_only', 'This process does not serve: run `purser backup FILE`.');
    return { file: await app.backUpNow() };
  }),
  'ledger.head': command(NOTHING, (app) => {
    const { seq, hash, epoch } = headOf(app.ledger.read);
    return { seq, hash, epoch };
  }),
};
