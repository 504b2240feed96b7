// A Purser without books, for comparison only: `node bench/unledgered.ts <data directory>`.
//
// It is the real server (configuration, door, authentication by SQLite, the look for an earlier operation of the key,
// quote, upstream, events and log) with one thing replaced: `ledger.write` answers at once, from memory. Left out are
// therefore: the closures of hold and settlement (their checks, statements and journal hashes), the queue, the turn of
// the event loop it waits for, the transaction and its fsync. Nothing is stored, so nothing can be replayed.
//
// It runs from source where Purser is the executable. Their steady speed is the same: only their start differs.
import { readConfig } from '../src/config.ts';
import { newId } from '../src/id.ts';
import type { Ledger } from '../src/ledger/ledger.ts';
import { createLog } from '../src/log.ts';
import { serve } from '../src/serve.ts';
import type { Running } from '../src/spend/running.ts';

const { config, secrets } = readConfig({ data: process.argv[2] }, {});
const log = createLog(config.logLevel);
const fatal = (error: unknown) => {
  throw error;
};
const app = await serve(config, secrets, { log, who: 'the bench', create: true, fatal });

// The road asks to write twice: synchronously inside `drive` (the hold), and after the call (the settlement). The first
// is answered with an operation that holds more than any answer costs, the second with "it moved".
const HOLD = 10n ** 15n;
let starting: object | undefined;
const { running: real } = app;
const running: Running = {
  ...real,
  drive(key, run) {
    starting = key;
    try {
      return real.drive(key, run);
    } finally {
      starting = undefined;
    }
  },
};
const write = () =>
  Promise.resolve(starting ? { ...starting, id: newId('op'), state: 'reserved', hold: HOLD, subject: 'mock-1' } : true);
const ledger: Ledger = { ...app.ledger, write: write as unknown as Ledger['write'] };
Object.assign(app, { running, ledger });
process.once('SIGTERM', () => void app[Symbol.asyncDispose]());
