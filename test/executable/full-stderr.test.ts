import assert from 'node:assert/strict';
import test from 'node:test';
import { installation } from '../helper/executable.ts';

const CLIENTS = 32;
/** A line has some 200 bytes: these are several times what a pipe and the buffer hold. */
const REQUESTS_EACH = 500;

test('a reader of stderr that stops reading does not stop the server, and hears what it lost when it reads again', async (t) => {
  const own = installation(t, { settings: { log_level: 'debug', metrics: { listen: '127.0.0.1:0' } } });
  const launched = own.launch('serve');
  const serving = await launched.serving;
  const { child, output } = launched;
  child.stderr?.pause();
  const storm = async () => {
    const path = `/v1/${'x'.repeat(200)}`;
    for (let i = 0; i < REQUESTS_EACH; i++) assert.equal((await serving.ask('GET', path)).status, 404);
  };
  await Promise.all(Array.from({ length: CLIENTS }, storm));

  child.stderr?.resume();
  const { lines } = await serving.logged('log.lost');
  assert(Number(lines) > 0, String(lines));
  assert.equal((await serving.ask('GET', '/healthz')).status, 200);
  assert.deepEqual(await serving.stop(), { code: 0, signal: null });
  assert.match(output.stderr, /"event":"stopped"/);
});

test('a server whose stderr nobody reads ends when it is told to', async (t) => {
  const own = installation(t, { settings: { log_level: 'debug' } });
  const launched = own.launch('serve');
  const serving = await launched.serving;
  launched.child.stderr?.pause();
  const path = `/v1/${'x'.repeat(200)}`;
  const storm = async () => {
    for (let i = 0; i < REQUESTS_EACH; i++) await serving.ask('GET', path);
  };
  await Promise.all(Array.from({ length: CLIENTS }, storm));
  const exited = new Promise((resolve) => launched.child.once('exit', (code, signal) => resolve({ code, signal })));
  serving.kill('SIGTERM');
  assert.deepEqual(await exited, { code: 0, signal: null });
});
