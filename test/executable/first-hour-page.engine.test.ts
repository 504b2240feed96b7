import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import test from 'node:test';
import { files } from '../../src/files/data-directory.ts';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { freePort } from '../helper/free-port.ts';
import { completion, openUpstream } from '../helper/upstream.ts';
import { waitFor } from '../helper/waiting.ts';
import { temporaryDirectory } from '../ledger/books.ts';

// docs/first-hour.md is what is tested here: its blocks are run as they are printed and in their order, in a world where the
// places that they name are directories of the test.

const ROOT = join(import.meta.dirname, '../..');

function readBlocks(): { heading: string; code: string }[] {
  let heading = '';
  const blocks: { heading: string; code: string }[] = [];
  const page = readFileSync(join(ROOT, 'docs/first-hour.md'), 'utf8');
  for (const [, title, code] of page.matchAll(/^## (.+)$|^```\w*\n([\s\S]*?)^```$/gm))
    if (title) heading = title;
    else blocks.push({ heading, code: code as string });
  return blocks;
}

test('the first hour, word for word', async (t) => {
  if (!hasComponent(t, 'curl')) return;
  const model = await openUpstream(t);
  const counted = completion({ prompt_tokens: 10, completion_tokens: 10, total_tokens: 20 });
  model.handle = (call, response) => {
    if (call.path === '/v1/models')
      return response.end(JSON.stringify({ data: [{ id: 'qwen3:8b', owned_by: 'vllm', max_model_len: 32_768 }] }));
    return (call.body.max_tokens === 1 ? completion({ prompt_tokens: 9, completion_tokens: 1 }) : counted)(
      call,
      response,
    );
  };
  const machine = temporaryDirectory(t);
  const place = (name: string) => join(machine, name);
  const bin = place('usr-local-bin');
  for (const name of ['usr-local-bin', 'completions', 'source/dist', 'source/docs'])
    mkdirSync(place(name), { recursive: true });
  copyFileSync(EXECUTABLE, place('source/dist/purser'));
  copyFileSync(join(ROOT, 'docs/restore-drill.sh'), place('source/docs/restore-drill.sh'));
  const port = await freePort();
  const env = {
    PATH: [bin, process.env.PATH].join(delimiter),
    PURSER_LISTEN: `127.0.0.1:${port}`,
    NO_COLOR: '1',
  };
  const placed = (code: string) =>
    code
      .replaceAll('/usr/local/bin', bin)
      .replaceAll('/etc/bash_completion.d', place('completions'))
      .replaceAll('/srv/purser', place('srv'))
      .replaceAll('/root/keys', place('keys'))
      .replaceAll('/mnt/backups', place('backups'))
      .replace(/^purser init$/m, `purser init --server ${model.url}`)
      .replaceAll('127.0.0.1:7420', `127.0.0.1:${port}`);
  const blocks = readBlocks();
  let directory = place('source');
  /** Runs the next block, which has to stand under that heading, and has to succeed. */
  const follow = async (heading: string) => {
    const block = blocks.shift();
    assert.equal(block?.heading, heading);
    const code = placed(block?.code as string);
    const shell = spawn('sh', ['-euc', code], { cwd: directory, env, stdio: ['ignore', 'pipe', 'pipe'] });
    t.after(() => shell.kill('SIGKILL'));
    const said = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr'] as const)
      shell[name].setEncoding('utf8').on('data', (text: string) => {
        said[name] += text;
      });
    const ended = new Promise((resolve) => shell.once('close', resolve));
    assert.equal(await waitFor(() => `${code} ends`, ended), 0, `${code}\n${said.stdout}${said.stderr}`);
    return said;
  };

  await follow('Install');
  assert.match(readFileSync(join(place('completions'), 'purser'), 'utf8'), /complete -F _purser purser/);
  const made = await follow('Write the settings');
  assert.match(made.stdout, /^Wrote .*\/srv\/purser-data\/purser\.yaml\.\nIt offers .*qwen3:8b/);
  directory = place('srv');
  const checked = await follow('Write the settings');
  assert.match(checked.stdout, /^ok {3}configuration: /);

  // It serves until the end of the page.
  const purser = installation(t, { settings: null, directory: join(directory, 'purser-data'), env });
  const start = blocks.shift();
  assert.deepEqual(start, { heading: 'Start', code: 'purser serve\n' });
  const server = await purser.serve();
  assert.match((await follow('Start')).stdout, /^ok {3}qwen3:8b on vllm: /m);
  assert.ok(existsSync(place('keys/master.key')));

  const money = await follow('Give an agent five dollars');
  assert.match(money.stdout, /^available_usd +10\.00$/m);
  assert.match(money.stdout, /^agent_token +svc_agent_/m);
  assert.match((await follow('Spend')).stdout, /"choices"/);
  const ran = await follow('Spend');
  assert.match(ran.stdout, /"choices"/);
  assert.match(ran.stderr, /^wal_\w+ is closed: 0\.0000075 of 1\.00 USD spent\.$/m);

  const seen = await follow('See who spent what');
  assert.match(seen.stdout, /^total +2 +20 +20 +0\.000015$/m); // Twice 10 × 0.15 + 10 × 0.60 USD per million.
  assert.match(seen.stdout, / agent-1 +1 +10 +10 +0\.0000075$/m);
  assert.match(seen.stdout, /^1 charged 0\.0000075 · qwen3:8b 0\.0000075$/m);
  assert.match(seen.stdout, /^upstreams +.*vllm up/m);
  const saved = await follow('Back up, and try the backup');
  assert.match(saved.stdout, /entries, every balance agrees/);
  await follow('Change a price while it runs');
  assert.match((await purser.cli('models', 'list')).stdout, /^qwen3:8b .* 0\.20 /m);
  const end = await follow('End');
  assert.match(end.stdout, /^available_usd +9\.98$/m); // 0.0000075 in each of two wallets, rounded up to a cent each.
  assert.match(end.stdout, /^ok {3}books: /m);
  assert.deepEqual(blocks, [], 'no block of the page is left');
  await server.stop();
  assert.ok(existsSync(files(purser.directory).database));
});
