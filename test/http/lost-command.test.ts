import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import type { GuestSession } from '../../src/compute/backend.ts';
import { openE2b } from '../e2b/shared.ts';

/** A session whose text has begun, and whose connection is then reset. */
async function lostSession(): Promise<GuestSession> {
  const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
  const ended = Promise.withResolvers<{ code: number }>();
  stdin.once('data', (chunk: Buffer) => {
    stdout.write(`${chunk.toString('latin1').split(' ')[0]} ok\n`);
    setImmediate(() => {
      ended.reject(new Error('the connection was reset'));
      stdout.destroy();
      stderr.destroy();
    });
  });
  return { stdin, stdout, stderr, resize() {}, ended: ended.promise, kill() {} };
}

test('a command whose connection was lost after it had begun is not said to be retried: it may have run', async (t) => {
  const { purser, wallet, create } = await openE2b(t);
  const id = `res_${(await create()).body.sandboxID}`;
  for (const { backend } of purser.app.slots.list)
    Object.assign(backend.guest, {
      session: lostSession,
      exec: async () => {
        throw new Error('the connection was reset');
      },
    });
  for (const [name, body] of [
    ['exec', { command: 'make deploy' }],
    ['exec', { command: 'make deploy', cwd: 'work' }],
    ['process/start', { command: 'make deploy' }],
  ] as const) {
    const told = await purser.ask('POST', `/v1/compute/${name}`, { token: wallet.token, body: { id, ...body } });
    assert.equal(told.status, 503, name);
    assert.match(told.body.error.message, /may have been done/, name);
    assert.doesNotMatch(told.body.error.message, /retry/i, name);
  }
});
