import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import test from 'node:test';
import { EXECUTABLE, type Installation, installation } from '../helper/executable.ts';

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

/** Runs a command whose `stream` is on a disk that is full, and returns its exit code and what the other stream holds. */
function withFull(own: Installation, stream: 'stdout' | 'stderr', ...args: string[]) {
  const full = openSync('/dev/full', 'w');
  try {
    const stdio = ['ignore', stream === 'stdout' ? full : 'pipe', stream === 'stderr' ? full : 'pipe'] as const;
    const line = ['--data', own.directory, ...args];
    const { status, stdout, stderr } = spawnSync(EXECUTABLE, line, { stdio: [...stdio], encoding: 'utf8' });
    return { code: status, said: stream === 'stdout' ? stderr : stdout };
  } finally {
    closeSync(full);
  }
}

test('what cannot be told on stderr changes no exit code, and leaves no wallet open', async (t) => {
  const own = installation(t);
  await own.serve();
  const { accounts } = await own.json('account', 'list');
  await own.json('account', 'credit', accounts[0].id, '2000c');
  assert.equal(withFull(own, 'stderr', 'account', 'show', 'nope').code, 3);
  assert.equal(withFull(own, 'stderr', 'bogus').code, 2);
  assert.equal(withFull(own, 'stderr', 'run', '--budget', '5.00', '--', 'sh', '-c', 'exit 7').code, 7);
  assert.equal(withFull(own, 'stderr', 'run', '--budget', '5.00', '--', '/no/such/program').code, 127);
  const { wallets } = await own.json('wallet', 'list');
  assert.deepEqual(
    wallets.map((it: { status: string }) => it.status),
    ['closed', 'closed'],
  );
});

test('an output that cannot be written ends in a sentence, not in a stack trace', async (t) => {
  const own = installation(t);
  await own.serve();
  const { accounts } = await own.json('account', 'list');
  await own.json('account', 'credit', accounts[0].id, '2000c');
  for (const args of [
    ['account', 'list'],
    ['--json', 'account', 'list'],
    ['ledger', 'export'],
  ]) {
    const { code, said } = withFull(own, 'stdout', ...args);
    assert.deepEqual([code, said.match(/^The output cannot be written \(ENOSPC\)\. .*\n$/) !== null], [5, true], said);
  }
});
