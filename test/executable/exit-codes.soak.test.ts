import assert from 'node:assert/strict';
import { appendFileSync, chmodSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import test from 'node:test';
import Client from 'better-sqlite3';
import { type Installation, installation } from '../helper/executable.ts';

/** Runs a command that has to fail, with and without --json: the code is the same, and so is the sentence. */
async function refused(purser: Installation, code: number, args: string[]): Promise<{ code: string; message: string }> {
  const said = await purser.cli(...args);
  const line = `purser ${args.join(' ')}`;
  assert.deepEqual({ code: said.code, stdout: said.stdout }, { code, stdout: '' }, `${line}: ${said.stderr}`);
  const asJson = await purser.cli('--json', ...args);
  assert.deepEqual({ code: asJson.code, stderr: asJson.stderr }, { code, stderr: '' }, line);
  const { error } = JSON.parse(asJson.stdout);
  assert.equal(said.stderr, `${error.message}\n`);
  assert.doesNotMatch(said.stderr, /\n\s+at /, 'a sentence, not a stack trace');
  return error;
}

for (const way of ['over the socket of a running server', 'in its own process'] as const)
  test(`each refusal has its exit code and its sentence, asked ${way}`, async (t) => {
    const purser = installation(t);
    const server = await purser.serve();
    if (way === 'in its own process') await server.stop();
    const { id } = await purser.json('account', 'create', 'research', '--credit-cents', '1000');
    const wallet = ['wallet', 'create', '--account', id, '--name', 'agent', '--budget-cents'];
    const closed = await purser.json(...wallet, '200');
    await purser.json('wallet', 'close', closed.id);
    const suspended = await purser.json('account', 'create', 'suspended', '--credit-cents', '1000');
    await purser.json('account', 'suspend', suspended.id);
    const operator = await purser.json('operator-key', 'mint');

    const cases: [number, string, string[]][] = [
      [2, 'invalid_request', [...wallet, '99']],
      [2, 'invalid_request', ['wallet', 'create', '--account', id, '--name', 'x'.repeat(81), '--budget-cents', '500']],
      [2, 'invalid_request', ['account', 'credit', id, '0c']],
      [2, 'invalid_request', ['account', 'create', 'x'.repeat(81)]],
      [2, 'invalid_request', ['operation', 'resolve', 'op_x', '--charge', '--reason', '']],
      [3, 'not_found', ['account', 'show', 'acct_x']],
      [3, 'not_found', ['account', 'credit', 'acct_x', '5c']],
      [3, 'not_found', ['key', 'list', '--account', 'acct_x']],
      [3, 'not_found', ['key', 'revoke', operator.id]], // An operator key is no account key.
      [3, 'not_found', ['operator-key', 'mint', '--account', 'acct_x']],
      [3, 'not_found', ['operator-key', 'revoke', 'key_x']],
      [3, 'not_found', ['wallet', 'show', 'wal_x']],
      [3, 'not_found', ['wallet', 'close', 'wal_x', '--wait']],
      [3, 'not_found', ['wallet', 'timeline', 'wal_x']],
      [3, 'not_found', ['resource', 'stop', 'res_x']],
      [3, 'not_found', ['resource', 'abandon', 'res_x', '--reason', 'r']],
      [3, 'not_found', ['operation', 'show', 'op_x']],
      [3, 'not_found', ['operation', 'resolve', 'op_x', '--charge', '--reason', 'r']],
      [4, 'conflict', ['account', 'create', 'research']],
      [4, 'insufficient_funds', ['account', 'debit', id, '1001c', '--reason', 'r']],
      [4, 'insufficient_funds', [...wallet, '1001']],
      [4, 'wallet_closed', ['wallet', 'token', closed.id]],
      [4, 'account_suspended', ['key', 'create', '--account', suspended.id, '--name', 'n']],
      [4, 'account_suspended', ['operator-key', 'mint', '--account', suspended.id]],
      [4, 'account_suspended', ['wallet', 'create', '--account', suspended.id, '--name', 'n', '--budget-cents', '500']],
    ];
    // The commands are the same in both ways: in a process of its own, one of each refusal is enough.
    const isFirst = ([, code]: (typeof cases)[number], i: number) => cases.findIndex((it) => it[1] === code) === i;
    for (const [exit, code, args] of cases.filter((it, i) => way !== 'in its own process' || isFirst(it, i)))
      assert.equal((await refused(purser, exit, args)).code, code, args.join(' '));
    const { ok } = await purser.json('ledger', 'verify');
    assert(ok);
  });

test('what stands in the way of every command has the code of a refusal with its exit code', async (t) => {
  const purser = installation(t);
  assert.equal((await refused(purser, 3, ['account', 'list'])).code, 'not_found');
  const server = await purser.serve();
  const other = await purser.cli('--json', 'serve');
  assert.deepEqual([other.code, JSON.parse(other.stdout).error.code], [5, 'read_only']);
  await server.stop();
  chmodSync(purser.directory, 0o777);
  assert.equal((await refused(purser, 4, ['account', 'list'])).code, 'conflict');
});

test('options that a command cannot heed are refused as wrong usage', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  for (const args of [
    ['completion', 'bash'],
    ['run', '--budget', '5.00', '--', 'true'],
    ['wallet', 'list', '--all', '--limit', '2'],
    ['operation', 'list', '--all', '--limit', '2'],
  ]) {
    const { code, stdout } = await purser.cli('--json', ...args);
    assert.deepEqual([code, JSON.parse(stdout).error.code], [2, 'usage'], args.join(' '));
  }
});

test('ledger verify exits 1 and names what is wrong when an entry was changed behind its back', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  await purser.json('account', 'create', 'research', '--credit-cents', '1000');
  const client = new Client(join(purser.directory, 'purser.db'));
  for (const { name } of client.prepare("select name from sqlite_schema where type = 'trigger'").all() as {
    name: string;
  }[])
    client.exec(`drop trigger ${name}`);
  client.exec('update entry set amount_nanos = amount_nanos + 1 where seq = 1');
  client.close();
  const said = await purser.cli('--json', 'ledger', 'verify');
  assert.equal(said.code, 1);
  const { ok, entries, problems } = JSON.parse(said.stdout);
  assert.deepEqual([ok, entries], [false, 1]);
  assert.match(problems.join('\n'), /entry 1 was changed: its hash does not match its fields/);
  const words = await purser.cli('ledger', 'verify');
  assert.deepEqual([words.code, words.stderr], [1, '']);
  assert.match(words.stdout, /^\d+ problems in 1 entries:\n {2}/);
});

test('config check says what a backend does not enforce, in words that are no faults', async (t) => {
  const container = { backend: 'container', socket: 'unix:///nowhere/docker.sock', image: 'debian:12' };
  const price_hourly_usd = '1';
  const host = { address: '10.0.0.7', host_key: 'ssh-ed25519 AAAA', identity_file: '/etc/purser/id', price_hourly_usd };
  const prices = { cpu_hourly_usd: '1', memory_gib_hourly_usd: '1', gpu_hourly_usd: { h100: '1' } };
  const one = { ...container, prices, limits: { cpus: 1, memory_gib: 1 }, network: 'lan' };
  const small = { id: 'small', cpus: 1, memory_gib: 1, max_disk_gb: 10, price_hourly_usd };
  const check = async (compute: object) => {
    const purser = installation(t, { settings: { compute } });
    const file = join(purser.directory, 'purser.yaml');
    const asJson = await purser.json('config', 'check');
    assert.deepEqual([asJson.ok, asJson.file, asJson.faults], [true, file, []]);
    const { code, stdout, stderr } = await purser.cli('config', 'check');
    assert.deepEqual([code, stderr], [0, '']);
    const [verdict, ...notes] = stdout.trimEnd().split('\n');
    assert.equal(verdict, `ok   configuration: ${file}`);
    assert.equal(asJson.checks.length, notes.length + 1);
    return notes;
  };
  const notes = await check({
    provider_one: one,
    provider_two: {
      backend: 'ssh',
      hosts: [
        { chip: 'a', ...host },
        { chip: 'b', ...host, port: 23, gpus: 2 },
      ],
    },
    provider_three: { ...container, offers: [small] },
  });
  for (const [at, what] of [
    [0, /^warn compute\.provider_one: each wallet’s leases get a network like lan and reach what it reaches/],
    [1, /^warn compute\.provider_one: no GPU is on offer: limits\.gpus is 0\.$/],
    [2, /^warn compute\.provider_one: containers share the kernel/],
    [3, /^warn compute\.provider_two: GPUs of 10\.0\.0\.7:22 are not counted/],
    [4, /^warn compute\.provider_two: a tenant has the whole host/],
    [5, /^warn compute\.provider_three: containers share the kernel/],
    [6, /^warn compute\.provider_three: whether disk_gb is enforced cannot be told: .*ENOENT/],
  ] as const)
    assert.match(notes[at] ?? '', what);
  assert.equal(notes.length, 7);
  const chips = { h100: { cpus: 1, memory_gib: 1, price_hourly_usd } };
  const others = await check({
    provider_two: { backend: 'slurm', job_user: 'nobody', chips },
    provider_three: { backend: 'vast', api_key: 'vast-canary-0123456789' },
  });
  assert.equal(others.length, 3);
  assert.match(others.join('\n'), /the one user nobody.*watchdog.*markup_percent is 0/s);
  assert.ok(!others.join().includes('vast-canary'));
  assert.deepEqual(await check({}), []);
});

test('config check names every fault at once, with file and line, and exits 1', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const file = join(purser.directory, 'purser.yaml');
  const good = [{ name: 'configuration', ok: true, detail: file }];
  assert.deepEqual(await purser.json('config', 'check'), { ok: true, file, faults: [], checks: good });

  writeFileSync(
    file,
    [
      'listen: nowhere',
      'colour: blue',
      'close_wait_seconds: 1.5',
      'router:',
      '  upstreams:',
      '    - { name: purser, base_url: "ftp://127.0.0.1/v1", api_key: $' + '{NOT_SET} }',
      '  models:',
      '    - id: m',
      '      upstream: other',
      '      context_length: 0',
      '      max_output_tokens: 10',
      '      pricing: { prompt: "0.1", completion: "-1" }',
    ].join('\n'),
  );
  const said = await purser.cli('config', 'check');
  assert.deepEqual([said.code, said.stdout], [1, '']);
  const faults = said.stderr.split('\n').slice(1, -1);
  const found = (line: number, what: RegExp) =>
    assert(
      faults.some((it) => it.startsWith(`  ${file}:${line}: `) && what.test(it)),
      `line ${line} ${what}:\n${said.stderr}`,
    );
  found(1, /listen: not an address of the form host:port/);
  found(2, /colour: unknown setting/);
  found(3, /close_wait_seconds: /);
  found(6, /\$\{NOT_SET\} is not set in the environment/);
  found(6, /base_url: not an http:\/\/ or https:\/\/ address/);
  found(10, /context_length: /);
  found(12, /completion: not an exact price/);
  const asJson = await purser.cli('--json', 'config', 'check');
  assert.equal(asJson.code, 1);
  const { ok, faults: list } = JSON.parse(asJson.stdout);
  assert.equal(ok, false);
  assert.deepEqual(
    list.map((it: string) => `  ${it}`),
    faults,
  );

  for (const command of [['serve'], ['account', 'list'], ['config', 'print']]) {
    const { code, stderr } = await purser.cli(...command);
    assert.deepEqual([code, stderr], [1, said.stderr], 'whoever needs the configuration says the same');
  }
  appendFileSync(file, '\n  models: [');
  const broken = await purser.cli('config', 'check');
  assert.equal(broken.code, 1);
  assert.match(broken.stderr, new RegExp(`${file}:1[34]: `), 'not even YAML');
  const absent = await purser.cli('--config', join(purser.directory, 'absent.yaml'), 'config', 'check');
  assert.equal(absent.code, 1);
  assert.match(absent.stderr, /absent\.yaml: cannot be read \(ENOENT\)/);
});

test('what only asks the server needs nothing of its configuration: neither its secrets nor a file without faults', async (t) => {
  const purser = installation(t);
  await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  const [{ id }] = accounts;
  writeFileSync(join(purser.directory, 'purser.yaml'), 'router: { upstreams: [{ api_key: $' + '{NOT_SET} }] }');
  await purser.json('account', 'credit', id, '1000c');
  const wallet = await purser.json('wallet', 'create', '--account', id, '--name', 'a', '--budget-cents', '500');
  await purser.json('wallet', 'close', wallet.id);
});

test('a command line that cannot be understood exits 2, and says so as JSON too', async (t) => {
  const purser = installation(t);
  for (const [args, what] of [
    [['--nonsense'], /^unknown option '--nonsense'/],
    [['account', 'list', '--nonsense'], /^unknown option '--nonsense'/],
    [['nonsense'], /^unknown command 'nonsense'/],
    [['account', 'credit', 'acct_x'], /^missing required argument/],
    [['account', 'credit', 'acct_x', 'five'], /It must be an amount/],
    [['account'], /^A command is missing/],
  ] as const) {
    const { code, stdout } = await purser.cli(...args, '--json');
    assert.equal(code, 2, stdout);
    const { error } = JSON.parse(stdout);
    assert.equal(error.code, 'usage');
    assert.match(error.message, what);
  }
  const help = await purser.cli('--json', '--help');
  assert.deepEqual([help.code, help.stderr], [0, '']);
});

test('a server that goes away in the middle of a command leaves its outcome unknown: exit 5', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const goesAway = createServer((socket) => socket.once('data', () => socket.destroy()));
  await new Promise<void>((resolve) => goesAway.listen(join(purser.directory, 'purser.sock'), resolve));
  t.after(() => goesAway.close());
  const { code, message } = await refused(purser, 5, ['account', 'list']);
  assert.equal(code, 'operation_uncertain');
  assert.match(message, /went away before it answered/);
});
