import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { widthOf } from '../../cli/terminal.ts';
import { reachableUrl } from '../../src/net/listen.ts';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { onTerminal, withoutControls } from '../helper/terminal.ts';
import { completion, openUpstream } from '../helper/upstream.ts';
import { ESCAPE } from './terminal-shared.ts';

test('without a terminal the same is a warning of the log, and agents get an address that exists', async (t) => {
  const purser = installation(t, { settings: { listen: '0.0.0.0:0' } });
  writeFileSync(join(purser.directory, 'purser.yml'), 'listen: 127.0.0.1:1');
  const server = await purser.serve();
  const notes = [await server.logged('settings.advice'), await server.logged('settings.advice', 2)];
  assert.deepEqual(
    notes.map(({ level }) => level),
    [40, 40],
  );
  assert.match(String(notes[0]?.msg), /purser\.yml is not read: the settings are those of /);
  assert.ok(!server.output.stderr.includes('Next, in another terminal'));
  const port = Number(new URL(server.url).port);
  await purser.json('account', 'credit', 'default', '1000c');
  const wallet = await purser.json('wallet', 'create', '--name', 'a', '--budget', '5.00');
  assert.equal(wallet.env.SVC_BROKER_URL, reachableUrl({ host: '0.0.0.0', port }));
  assert.match(
    (await purser.cli('doctor')).stdout,
    /^warn configuration: .*purser\.yml is not read.*\nwarn listen: .* Set public_url/m,
  );
  const checked = await purser.cli('config', 'check');
  assert.equal(checked.code, 0);
  assert.match(checked.stdout, /^warn configuration: \S+purser\.yml is not read/m);
  assert.match(checked.stdout, /^warn listen: 0\.0\.0\.0 is no address that an agent could call/m);
});

test('a command on a hung server gives up in words, after a spinner; on a slow one it waits', async (t) => {
  const purser = installation(t);
  const server = await purser.serve();
  server.kill('SIGSTOP');
  t.after(() => server.kill('SIGCONT'));
  const at = onTerminal(t, [EXECUTABLE, '--data', purser.directory, 'account', 'list']);
  const gaveUp = await purser.cli('account', 'list');
  assert.deepEqual([gaveUp.code, gaveUp.stdout], [5, '']);
  assert.match(gaveUp.stderr, /^The server does not answer\. If it is suspended, resume it \(kill -CONT\); .*\n$/);
  assert.equal(await at.ended, 5);
  assert.match(at.screen(), /\r⠋ waiting for the server, \d s/);
  assert.ok(at.screen().includes(`\r${ESCAPE}[KThe server does not answer`), 'the line of the spinner is cleared');
  server.kill('SIGCONT');
  assert.equal((await purser.cli('account', 'list')).code, 0);
});

test('init writes a commented file that works, asks on a terminal, and never overwrites', async (t) => {
  const upstream = await openUpstream(t);
  upstream.handle = (call, response) =>
    call.path === '/v1/models'
      ? response.end(JSON.stringify({ data: [{ id: 'qwen3-8b', owned_by: 'vllm', max_model_len: 32_768 }] }))
      : completion({ prompt_tokens: 9, completion_tokens: 1 })(call, response);
  const purser = installation(t, { settings: null, env: { PURSER_LISTEN: '127.0.0.1:0' } });
  const file = join(purser.directory, 'purser.yaml');
  const look = ['init', '--server', upstream.url];
  const no = onTerminal(t, [EXECUTABLE, '--data', join(purser.directory, 'other'), ...look]);
  await no.shows(/vLLM at \S+ has qwen3-8b \(32768 tokens\)\.\n {2}Offer it\? \[Y\/n\] /);
  no.type('n\n');
  assert.equal(await no.ended, 0);
  assert.doesNotMatch(readFileSync(join(purser.directory, 'other', 'purser.yaml'), 'utf8'), /^ *- id:/m);

  const made = await purser.json(...look);
  const [{ models, ...server }] = made.servers.filter((it: { base_url: string }) => it.base_url === upstream.url);
  assert.deepEqual(server, { software: 'vLLM', base_url: upstream.url, is_locked: false, is_offered: true });
  assert.deepEqual(models, [{ id: 'qwen3-8b', kind: 'chat', context_length: 32_768 }]);
  assert.equal(made.file, file);
  assert.ok(!existsSync(join(purser.directory, 'purser.db')), 'no database');
  const text = readFileSync(file, 'utf8');
  assert.ok(text.startsWith('# The settings of Purser.'));
  assert.equal((await purser.cli('config', 'check')).code, 0);
  const refused = await purser.cli(...look, '--yes');
  assert.deepEqual([refused.code, refused.stdout], [4, '']);
  assert.equal(
    refused.stderr,
    `${file} is there already, and init never overwrites. Edit it, or name another with --config.\n`,
  );
  assert.equal(readFileSync(file, 'utf8'), text);

  await purser.serve();
  await purser.json('account', 'credit', 'default', '$10');
  const ran = await purser.cli('models', 'check');
  assert.match(ran.stdout, /^ok {3}qwen3-8b on vllm: /m);
});

test('models import shows the differences first, writes with --yes, and a reload takes the prices', async (t) => {
  const purser = installation(t, { settings: null, env: { PURSER_LISTEN: '127.0.0.1:0' } });
  const file = join(purser.directory, 'purser.yaml');
  const text = `router:
  upstreams: [{ name: u, base_url: "http://127.0.0.1:1/v1" }]
  models: # Ours.
    - { id: m, upstream: u, context_length: 1000, max_output_tokens: 100, pricing_per_million: { prompt: 1, completion: 2 } }
`;
  writeFileSync(file, text);
  const list = join(purser.directory, 'prices.json');
  writeFileSync(
    list,
    JSON.stringify({ m: { mode: 'chat', input_cost_per_token: 1.5e-6, output_cost_per_token: 2e-6 } }),
  );
  await purser.serve();
  const shown = await purser.cli('models', 'import', list);
  assert.deepEqual(
    [shown.code, shown.stdout, shown.stderr],
    [
      0,
      'MODEL  UPSTREAM  PRICE                BEFORE USD  AFTER USD\nm      u         prompt, per million        1.00       1.50\n',
      'Nothing was written. --yes writes it.\n',
    ],
  );
  assert.equal(readFileSync(file, 'utf8'), text);
  const asked = onTerminal(t, [EXECUTABLE, '--data', purser.directory, 'models', 'import', list]);
  await asked.shows(/Write this into \S+\? \[y\/N\] /);
  asked.type('y\n');
  assert.equal(await asked.ended, 0, asked.screen());
  assert.match(asked.screen(), /Next: purser reload/);
  assert.equal(readFileSync(file, 'utf8'), text.replace('prompt: 1,', 'prompt: "1.50",'));
  const printed = await purser.json('config', 'print');
  assert.deepEqual(printed.settings.router.models[0].pricing_per_million, {
    prompt: '1.50',
    completion: '2.00',
    tiers: [],
  });
  assert.deepEqual((await purser.json('reload')).models.changed, ['m']);
  assert.match((await purser.cli('models', 'list')).stdout, /PROMPT USD\/M .*\nm .* 1\.50 /);
  assert.deepEqual(await purser.json('models', 'import', list, '--yes'), {
    file,
    changes: [],
    unmatched: [],
    tiered: [],
    written: false,
  });
  assert.equal((await purser.cli('models', 'import', join(purser.directory, 'none.json'))).code, 3);
  assert.equal((await purser.cli('models', 'import', file)).code, 1);
});

const colours = (text: string) => text.includes(`${ESCAPE}[`);

test('tables fit the terminal; colours are for terminals, and not under NO_COLOR or a pipe', async (t) => {
  const upstream = await openUpstream(t);
  upstream.handle = completion({ prompt_tokens: 11, completion_tokens: 7 });
  const purser = installation(t, { upstream });
  const server = await purser.serve();
  await purser.json('account', 'credit', 'default', '1000c');
  const wallet = await purser.json('wallet', 'create', '--name', 'agent-7', '--budget', '5.00');
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };
  await server.ask('POST', '/v1/chat/completions', { token: wallet.agent_token, key: 'one', body });

  const on = async (columns: number, args: string[], env = {}) => {
    const at = onTerminal(t, [EXECUTABLE, '--data', purser.directory, ...args], { columns, env });
    assert.equal(await at.ended, 0, at.screen());
    return at.screen();
  };
  for (const columns of [60, 80, 120])
    for (const args of [
      ['wallet', 'list'],
      ['operation', 'list'],
      ['wallet', 'timeline', 'agent-7'],
      ['models', 'list'],
    ])
      for (const line of withoutControls(await on(columns, args))
        .split('\n')
        .slice(args[1] === 'timeline' ? 1 : 0))
        assert.ok(widthOf(line) <= columns || args[1] === 'timeline', `${args.join(' ')} at ${columns}: ${line}`);
  const list = await on(100, ['wallet', 'list']);
  assert.ok(list.includes(`${ESCAPE}[32mactive${ESCAPE}[39m`), JSON.stringify(list));
  const short = /^(wal_\w{10,25}) /m.exec(withoutControls(await on(80, ['wallet', 'list'])))?.[1] as string;
  assert.ok(short.length < wallet.id.length);
  assert.equal((await purser.json('wallet', 'show', short)).id, wallet.id, 'what is shown can be typed');
  assert.ok(!colours(await on(100, ['wallet', 'list'], { NO_COLOR: '1' })));
  const piped = (await purser.cli('wallet', 'list')).stdout;
  assert.ok(!colours(piped));
  assert.ok(piped.includes(wallet.id), 'a pipe gets whole ids');
  assert.equal(
    await on(80, ['--json', 'wallet', 'show', wallet.id]),
    (await purser.cli('--json', 'wallet', 'show', wallet.id)).stdout,
  );
  assert.ok((await on(80, ['doctor'])).includes(`${ESCAPE}[32mok${ESCAPE}[39m  `));
});
