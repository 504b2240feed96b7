import { headOf } from '../ledger/head.ts';
import { type Installation, setFrozen } from '../ledger/installation.ts';
import { command, NOTHING } from './command.ts';

const record = (it: Installation) => ({
  installation_id: it.installationId,
  frozen: it.frozenAt !== null,
  frozen_at: it.frozenAt,
});

export const installation = {
  freeze: command(NOTHING, async (app) => {
    const now = app.clock.now();
    return record(await app.ledger.write((tx) => setFrozen(tx, now)));
  }),
  unfreeze: command(NOTHING, async (app) => record(await app.ledger.write((tx) => setFrozen(tx, null)))),
  'ledger.head': command(NOTHING, (app) => {
    const { seq, hash, epoch } = headOf(app.ledger.read);
    return { seq, hash, epoch };
  }),
};
