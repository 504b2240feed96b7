import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import test from 'node:test';
import { EXECUTABLE, installation } from '../helper/executable.ts';

// `purser run` and the wallet commands that move money, as an operator types them.

const NAMES = [
  'SVC_BROKER_URL',
  'SVC_BROKER_TOKEN',
  'OPENAI_BASE_URL',
  'OPENAI_API_KEY',
  'ANTHROPIC_BASE_URL',
  'ANTHROPIC_AUTH_TOKEN',
];

const PRINT = `console.log(JSON.stringify(${JSON.stringify(NAMES)}.map((name) => process.env[name] ?? null)))`;

test('a program runs with a wallet of its own, which is closed when it ends; its exit code passes', async (t) => {
  const purser = installation(t);
  const server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 2000 });
  const ran = await purser.cli(
    'run',
    '--budget',
    '12.50',
    '--',
    process.execPath,
    '-e',
    `${PRINT};process.exitCode = 7`,
  );
  assert.equal(ran.code, 7, ran.stderr);
  const [url, token, openai, key, anthropic, anthropicKey] = JSON.parse(ran.stdout);
  assert.equal(url, server.url);
  assert.match(token, /^svc_agent_/);
  assert.deepEqual([openai, anthropic], [`${server.url}/v1/router`, `${server.url}/v1/router`]);
  assert.match(key, /^svc_router_/);
  assert.equal(anthropicKey, key);
  const [wallet] = (await purser.json('wallet', 'list')).wallets;
  assert.deepEqual([wallet.status, wallet.budget_usd], ['closed', '12.50']);
  const expires = new Date(wallet.expires_at * 1000).toISOString().replace('T', ' ').replace('.000Z', 'Z');
  assert.match(
    ran.stderr,
    new RegExp(
      `^${wallet.id} is open for \\S+/node\\. It expires at ${expires} \\(in (1 d|2\\d h)\\); other times: --expires 7d, --expires never\\.\n${wallet.id} is closed: 0\\.00 of 12\\.50 USD spent\\.\n$`,
    ),
  );
  assert.equal(wallet.expires_at - wallet.created_at, 86_400);
  assert(!ran.stderr.includes(token) && !ran.stderr.includes(key));
  const forever = await purser.cli('run', '--budget', '5.00', '--expires', 'never', '--', 'no-such-program');
  assert.equal(forever.code, 127);
  assert.match(forever.stderr, /^wal_\w+ is open for no-such-program\. It never expires\.\n/);
  assert.equal((await purser.cli('run', '--budget', '0.999', '--', 'true')).code, 2);
  assert.equal((await purser.cli('run', '--budget', '99.00', '--', 'true')).code, 4);
  const open = (await purser.json('wallet', 'list')).wallets.filter((it: { status: string }) => it.status !== 'closed');
  assert.deepEqual(open, []);
});

test('a signal reaches the program, and the wallet is closed before it shows', async (t) => {
  const purser = installation(t);
  await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 2000 });
  const wait = `process.on('SIGTERM', () => { console.log('ending'); process.exitCode = 3; clearInterval(timer) }); console.log('ready'); const timer = setInterval(() => {}, 1000)`;
  const args = ['--data', purser.directory, 'run', '--budget', '5.00', '--', process.execPath, '-e', wait];
  const child = spawn(EXECUTABLE, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  t.after(() => child.kill('SIGKILL'));
  let said = '';
  child.stdout.on('data', (bytes) => {
    if (!said) child.kill('SIGTERM');
    said += bytes;
  });
  const [code] = await once(child, 'close');
  assert.deepEqual([code, said], [3, 'ready\nending\n']);
  assert.equal((await purser.json('wallet', 'list')).wallets[0].status, 'closed');
});

test('the master key is not handed to the program', async (t) => {
  const purser = installation(t, { env: { PURSER_MASTER_KEY: randomBytes(32).toString('hex') } });
  await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 2000 });
  const ran = await purser.cli('run', '--budget', '5.00', '--', 'sh', '-c', 'env | grep -c PURSER_MASTER_KEY');
  assert.deepEqual([ran.code, ran.stdout], [1, '0\n'], ran.stderr);
});

test('without a server there is nothing to run against, and it says so', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const refused = await purser.cli('run', '--budget', '5.00', '--', 'true');
  assert.deepEqual(
    [refused.code, refused.stderr],
    [5, 'No server is running on this data directory. Start it: purser serve\n'],
  );
});
