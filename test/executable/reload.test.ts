import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { parse, stringify } from 'yaml';
import { installation } from '../helper/executable.ts';
import { gate, openUpstream } from '../helper/upstream.ts';

test('SIGHUP and purser reload read the settings again; a chat in flight is answered, and nothing ends the process', async (t) => {
  const [upstream, next] = [await openUpstream(t), await openUpstream(t)];
  const purser = installation(t, { upstream });
  const file = join(purser.directory, 'purser.yaml');
  const original = readFileSync(file, 'utf8');
  const settings = parse(original);
  const server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 1000 });
  const create = { account: 'default', name: 'agent', budget_cents: 500 };
  const { agent_token: token } = await purser.operate('wallet.create', create);
  const chat = (model: string, key: string) =>
    server.ask('POST', '/v1/chat/completions', {
      token,
      key,
      body: { model, messages: [{ role: 'user', content: 'hi' }], max_tokens: 10 },
    });
  const late = gate();
  upstream.handle = late.handler;
  const inFlight = chat('flat', 'first');
  await upstream.arrived(1);

  const canary = 'sk-reloaded-canary-0123456789';
  settings.router.upstreams = [{ name: 'next', base_url: next.url, api_key: canary }];
  settings.router.models = [
    { id: 'new', upstream: 'next', context_length: 1000, max_output_tokens: 100, pricing: { request: '0.02' } },
  ];
  writeFileSync(file, stringify(settings));
  server.kill('SIGHUP');
  const { models } = (await server.logged('reloaded')) as unknown as { models: unknown };
  assert.deepEqual(models, { added: ['new'], removed: ['chat', 'flat', 'free', 'dear', 'unpriced'], changed: [] });
  assert.equal((await chat('new', 'second')).status, 200);
  late.open();
  assert.equal((await inFlight).status, 200);
  assert.equal((await server.ask('GET', '/v1/budget', { token })).body.used_usd, '0.03');

  writeFileSync(file, `${stringify(settings)}lisen: x\n`);
  server.kill('SIGHUP');
  assert.match(String((await server.logged('reload.refused')).reason), /purser\.yaml:\d+: lisen: unknown setting/);
  const broken = await purser.cli('reload');
  assert.equal(broken.code, 4);
  assert.match(
    broken.stderr,
    /^Nothing was changed\. .*\n.*purser\.yaml:\d+: lisen: unknown setting\. Did you mean listen\?\n$/,
  );

  for (const [why, away] of [
    ['empty', () => writeFileSync(file, '')],
    ['gone', () => rmSync(file)],
  ] as const) {
    away();
    const lost = await purser.cli('reload');
    assert.equal(lost.code, 4, lost.stdout);
    assert.match(lost.stderr, new RegExp(`^Nothing was changed: .*purser\\.yaml is ${why}\\. Put the settings back`));
    assert.equal((await chat('new', why)).status, 200);
  }

  writeFileSync(file, stringify({ ...settings, listen: '127.0.0.1:1' }));
  const moved = await purser.cli('--json', 'reload');
  assert.equal(moved.code, 4);
  assert.match(JSON.parse(moved.stdout).error.message, /^Nothing was changed: a change of listen needs a restart\./);

  writeFileSync(file, original);
  assert.deepEqual((await purser.json('reload')).models.removed, ['new']);
  assert.equal((await purser.cli('reload')).stdout, 'Nothing is different.\n');
  assert.equal((await server.stop()).code, 0);
  assert(!server.output.stderr.includes(canary));
  const alone = await purser.cli('reload');
  assert.deepEqual([alone.code, alone.stderr.split(':')[0]], [5, `No server runs in ${purser.directory}`]);
});

test('SIGHUP never ends the process: not during the start, where it reads the settings again afterwards, nor during the stop', async (t) => {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, settings: { drain_seconds: 20 } });
  const file = join(purser.directory, 'purser.yaml');
  const launched = purser.launch('serve');
  const hangUp = () => process.kill(launched.child.pid as number, 'SIGHUP');
  // The first line of a first start is printed before anything is opened.
  while (!launched.output.stderr.includes('Creating a new installation'))
    await Promise.race([once(launched.child.stderr as NodeJS.ReadableStream, 'data'), launched.ended]);
  writeFileSync(file, `${readFileSync(file, 'utf8')}log_level: debug\n`);
  for (let i = 0; i < 5; i++) hangUp();
  const server = await launched.serving;
  await server.logged('reloaded');

  await purser.operate('account.credit', { id: 'default', cents: 1000 });
  const create = { account: 'default', name: 'agent', budget_cents: 500 };
  const { agent_token: token } = await purser.operate('wallet.create', create);
  const late = gate();
  upstream.handle = late.handler;
  const inFlight = server.ask('POST', '/v1/chat/completions', {
    token,
    key: 'k',
    body: { model: 'flat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 10 },
  });
  await upstream.arrived(1);
  server.kill('SIGTERM');
  await server.logged('stopping');
  for (let i = 0; i < 5; i++) server.kill('SIGHUP');
  await server.logged('reload.refused');
  late.open();
  assert.equal((await inFlight).status, 200);
  assert.deepEqual(await server.ended, { code: 0, signal: null });
});
