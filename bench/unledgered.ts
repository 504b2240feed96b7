// A Purser without a ledger, for comparison only: `node bench/unledgered.ts <data directory>`.
//
// It is the real server (configuration, HTTP, authentication from SQLite, the query for an earlier operation of the key,
// quote, upstream, events and log) with one thing replaced: `ledger.write` returns at once, from memory. This omits the
// closures of hold and settlement (their checks, statements and journal hashes), the write queue, the turn of the event
// loop it waits for, the transaction and its fsync. Nothing is stored, so nothing can be replayed.
//
// It runs from source, while Purser is the executable. Only their start differs, not their steady speed.

import { createLog } from '../src/base/log.ts';
import { readConfig } from '../src/config/config.ts';
import type { Ledger } from '../src/ledger/ledger.ts';
import { serve } from '../src/main/serve.ts';

const config = readConfig({ data: process.argv[2] }, {});
const log = createLog(config.log_level);
const fatal = (error: unknown) => {
  throw error;
};
const app = await serve(config, { log, who: 'the bench', create: true, fatal });

// Each attempt writes twice: the hold, which holds more than any answer costs, and after the call the settlement.
const HOLD = 10n ** 15n;
const held = { placed: { hold: HOLD, price: '{}', seal: 0 }, reducedTo: undefined };
const settled = { judged: undefined, moved: true, available: HOLD };
const write = ({ name }: { name: string }) => Promise.resolve(name.endsWith('.hold') ? held : settled);
const ledger: Ledger = { ...app.ledger, write: write as unknown as Ledger['write'] };
Object.assign(app, { ledger });
process.once('SIGTERM', () => void app[Symbol.asyncDispose]());
