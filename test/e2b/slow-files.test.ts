import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import type { GuestSession } from '../../src/compute/backend.ts';
import { KILLED } from '../../src/compute/machine/shell.ts';
import { inside, openE2b } from './shared.ts';

/** A session whose script says its first word, or none, and is killed by its limit. `pass` lets the time of that pass. */
async function slowSession(word: string | undefined, pass: () => void): Promise<GuestSession> {
  const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
  const ended = Promise.withResolvers<{ code: number }>();
  stdin.once('data', (chunk: Buffer) => {
    const [token = ''] = chunk.toString('latin1').split(' ');
    if (word !== undefined) stdout.write(`${token} ${word}\n`);
    pass();
    stdout.end();
    stderr.end();
    ended.resolve({ code: KILLED });
  });
  return { stdin, stdout, stderr, resize() {}, ended: ended.promise, kill() {} };
}

test('a call on files that takes too long says so, and not that its provider cannot be reached', async (t) => {
  const { purser, create } = await openE2b(t);
  const { rpc } = inside(purser, (await create()).body);
  const now = performance.now.bind(performance);
  let ahead = 0;
  t.mock.method(performance, 'now', () => now() + ahead);
  for (const [word, call, body] of [
    ['ok', 'ListDir', { path: '/', depth: 20 }],
    [undefined, 'Remove', { path: '/tmp/a' }],
    [undefined, 'Move', { source: '/tmp/a', destination: '/mnt/a' }],
  ] as const) {
    const session = () =>
      slowSession(word, () => {
        ahead += 60_000;
      });
    for (const { backend } of purser.app.slots.list) Object.assign(backend.guest, { session });
    const { status, body: told } = await rpc(`filesystem.Filesystem/${call}`, body);
    assert.deepEqual([status, told.code], [500, 'unknown'], call);
    assert.match(told.message, /took more than 60 s/, call);
  }
});
