// A Purser without a ledger, for comparison only: `node bench/unledgered.ts <data directory>`.
//
// It is the real server (configuration, HTTP, authentication from SQLite, the query for an earlier operation of the key,
// quote, upstream, events and log) with one thing replaced: `ledger.write` returns at once, from memory. This omits the
// closures of hold and settlement (their checks, statements and journal hashes), the write queue, the turn of the event
// loop it waits for, the transaction and its fsync. Nothing is stored, so nothing can be replayed.
//
// It runs from source, while Purser is the executable. Only their start differs, not their steady speed.
import { AsyncLocalStorage } from 'node:async_hooks';
import { readConfig } from '../src/config/config.ts';
import { newId } from '../src/id.ts';
import type { Ledger } from '../src/ledger/ledger.ts';
import { createLog } from '../src/log.ts';
import { serve } from '../src/serve.ts';
import type { InFlight } from '../src/spend/in-flight.ts';

const { config, secrets } = readConfig({ data: process.argv[2] }, {});
const log = createLog(config.logLevel);
const fatal = (error: unknown) => {
  throw error;
};
const app = await serve(config, secrets, { log, who: 'the bench', create: true, fatal });

// Each attempt writes twice: the hold, and after the call the settlement. The first returns an operation that holds more
// than any answer costs, the second "it moved".
const HOLD = 10n ** 15n;
const attempts = new AsyncLocalStorage<{ key: object; isHeld: boolean }>();
const { inFlight: real } = app;
const running: InFlight = {
  ...real,
  drive: (key, run) => attempts.run({ key, isHeld: false }, () => real.drive(key, run)),
};
const write = () => {
  const attempt = attempts.getStore();
  if (!attempt || attempt.isHeld) return Promise.resolve({ judged: undefined, moved: true, available: HOLD });
  attempt.isHeld = true;
  const operation = { ...attempt.key, id: newId('op'), state: 'reserved', hold: HOLD, subject: 'mock-1' };
  return Promise.resolve({ operation, reducedTo: undefined });
};
const ledger: Ledger = { ...app.ledger, write: write as unknown as Ledger['write'] };
Object.assign(app, { inFlight: running, ledger });
process.once('SIGTERM', () => void app[Symbol.asyncDispose]());
