import assert from 'node:assert/strict';
import test from 'node:test';
import { anonymousMegabytes } from '../../bench/process.ts';
import { installation } from '../helper/executable.ts';

const LOOK_MILLISECONDS = 250;
/** A collection takes some tens of milliseconds, and is logged after it. */
const COLLECTION_MILLISECONDS_MAX = 1000;
/**
 * Two readings without a collection between them differ by less. A collection after half a minute gives back two, but on a machine
 * so busy that the server is idle only after a minute, V8 has left half of one by then.
 */
const LEAST_MEGABYTES = 0.2;

test('an idle server gives back what V8 by itself keeps', async (t) => {
  const server = await installation(t, { settings: { log_level: 'debug' } }).serve();
  // After eight seconds V8 has given back what it does by itself: only what goes at once is the collection's.
  const seen: { at: number; megabytes: number }[] = [];
  const look = setInterval(
    () => seen.push({ at: Date.now(), megabytes: anonymousMegabytes(server.pid) }),
    LOOK_MILLISECONDS,
  );
  t.after(() => clearInterval(look));
  const { time } = await server.logged('memory.collected');
  clearInterval(look);
  const idle = anonymousMegabytes(server.pid);
  // On a busy machine the line is read long after it was written.
  const earlier = seen
    .filter(({ at }) => at < Date.parse(String(time)) - COLLECTION_MILLISECONDS_MAX)
    .map((it) => it.megabytes);
  const before = earlier.at(-1) as number;
  t.diagnostic(
    `${earlier[0]?.toFixed(1)} MB when it served, ${before.toFixed(1)} MB before the collection, ${idle.toFixed(1)} MB after it`,
  );
  assert.ok(idle < before - LEAST_MEGABYTES, `${idle.toFixed(1)} MB of ${before.toFixed(1)}`);
});
