import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { EXECUTABLE, installation, run } from '../helper/executable.ts';
import { completion, openUpstream } from '../helper/upstream.ts';
import { walletWith } from './cli-shared.ts';

test('tables are for people: the same facts without --json, data on stdout and nothing on stderr', async (t) => {
  const purser = installation(t);
  const server = await purser.serve();
  const wallet = await walletWith(purser);
  const list = await purser.cli('wallet', 'list');
  assert.deepEqual([list.code, list.stderr], [0, '']);
  assert.match(list.stdout, /^ID +NAME +STATUS +BUDGET USD +USED USD .*\n/);
  assert(list.stdout.includes(wallet.id));
  const shown = await purser.cli('wallet', 'show', wallet.id);
  assert.match(shown.stdout, /^created_at +\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ \(\d+ s ago\)$/m);
  const token = await purser.cli('wallet', 'token', wallet.id);
  assert.equal(token.stdout, `${wallet.agent_token}\n`, 'fit for $(…)');
  assert.match((await purser.cli('wallet', 'timeline', wallet.id)).stdout, /^wal_.* active, budget 5\.00/);
  assert.equal((await purser.cli('operation', 'list')).stdout, '(none)\n');
  const verified = await purser.cli('ledger', 'verify');
  assert.deepEqual([verified.code, verified.stderr], [0, '']);
  assert.match(verified.stdout, /^2 entries, every balance agrees\./);
  await server.stop();
});

test('wallet close --wait stays until what is in flight has ended; without it, it says that cleanup goes on', async (t) => {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, settings: { close_wait_seconds: 0 } });
  const server = await purser.serve();
  const wallet = await walletWith(purser);
  const opened = Promise.withResolvers<void>();
  upstream.handle = async (call, response) => {
    await opened.promise;
    completion()(call, response);
  };
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };
  const chat = server.ask('POST', '/v1/chat/completions', { token: wallet.agent_token, key: randomUUID(), body });
  await upstream.arrived(1);

  const hasty = await purser.cli('wallet', 'close', wallet.id);
  assert.equal(hasty.code, 4);
  assert.match(hasty.stderr, /is closing; its cleanup goes on.* Repeat the command, or give --wait\.$/m);
  const patient = purser.cli('--json', 'wallet', 'close', wallet.id, '--wait');
  opened.resolve();
  assert.equal((await chat).status, 200);
  const { code, stdout } = await patient;
  assert.equal(code, 0);
  const record = JSON.parse(stdout);
  assert.deepEqual([record.status, record.used_usd, record.returned_cents], ['closed', '0.00012', 499]);
});

/** Runs the executable with an output that nobody reads. */
const CUT = ['bash', '-c', 'set -o pipefail; "$0" "$@" | true', EXECUTABLE];

const QUIET = { code: 0, signal: null, stdout: '', stderr: '' };

test('whoever stops reading the output ends the command quietly', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '500c');
  for (const args of [
    ['ledger', 'export'],
    ['account', 'list'],
    ['--json', 'account', 'list'],
  ])
    assert.deepEqual(await run(['--data', purser.directory, ...args], { command: CUT }), QUIET);
});
