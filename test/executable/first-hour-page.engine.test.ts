import assert from 'node:assert/strict';
import { readFileSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { EXECUTABLE } from '../helper/executable.ts';
import { bootMachine, type Machine } from '../helper/systemd.ts';
import { until } from '../helper/waiting.ts';

// docs/first-hour.md is what is tested here: its blocks are run as they are printed and in their order, by root in a booted Debian
// on which a model server runs.

const PAGE = join(import.meta.dirname, '../../docs/first-hour.md');

function readBlocks(): { heading: string; code: string }[] {
  let heading = '';
  const blocks: { heading: string; code: string }[] = [];
  for (const [, title, code] of readFileSync(PAGE, 'utf8').matchAll(/^## (.+)$|^```\w*\n([\s\S]*?)^```$/gm))
    if (title) heading = title;
    else blocks.push({ heading, code: code as string });
  return blocks;
}

/** Boots a Debian with the executable and a model server on vLLM's port. */
async function openMachine(t: TestContext): Promise<Machine | undefined> {
  const files = {
    [EXECUTABLE]: '/opt/purser',
    [realpathSync(process.execPath)]: '/opt/node',
    [join(import.meta.dirname, 'model-of-machine.mjs')]: '/opt/model.mjs',
  };
  // The books need a disk that syncs, as `doctor` says of memory.
  const machine = await bootMachine(t, ['adduser', 'curl'], files, ['/var/lib/purser']);
  if (!machine) return undefined;
  await machine.sh('cp /opt/purser /root/purser && systemd-run --quiet /opt/node /opt/model.mjs');
  await until('the model server answers', () =>
    machine.sh('curl -sf http://127.0.0.1:8000/v1/models').catch(() => undefined),
  );
  return machine;
}

const isReady = ({ sh }: Machine) =>
  until('the service is ready', () =>
    sh('test -S /var/lib/purser/purser.sock && curl -sf http://127.0.0.1:7420/readyz').catch(() => undefined),
  );

test('the first hour, word for word', async (t) => {
  const machine = await openMachine(t);
  if (!machine) return;
  const { sh } = machine;
  const blocks = readBlocks();
  /** Runs the next block, which has to stand under that heading, and has to succeed. Returns its output. */
  const follow = (heading: string) => {
    const block = blocks.shift();
    assert.equal(block?.heading, heading);
    return sh(`cd /root\n${block?.code}`);
  };

  const installed = await follow('Install');
  assert.match(installed, /^Made the user purser\.$/m);
  assert.match(installed, /^It offers qwen3:8b at /m);
  assert.match(installed, /^Started the service\. It also starts with the machine\.$/m);
  assert.equal(await sh('stat -c %U:%G:%a /etc/purser/purser.yaml'), 'root:purser:640');
  assert.equal(await sh('stat -c %U:%G:%a /var/lib/purser'), 'purser:purser:700');
  assert.match(await follow('Install'), /^ok {3}configuration: /m);
  assert.match(await follow('Install'), /^ok {3}qwen3:8b on vllm: /m);

  const money = await follow('Give an agent five dollars');
  assert.match(money, /^available_usd +10\.00$/m);
  assert.match(money, /^agent_token +svc_agent_/m);
  assert.match(await follow('Spend'), /"choices"/);
  assert.match(await follow('Spend'), /"choices"/);

  const seen = await follow('See who spent what');
  assert.match(seen, /^qwen3:8b +2 +20 +20 +0\.0000150$/m); // Twice 10 × 0.15 + 10 × 0.60 USD per million.
  assert.match(seen, / agent-1 +1 +10 +10 +0\.0000075$/m);
  assert.match(seen, /^1 charged 0\.0000075 · qwen3:8b 0\.0000075$/m);
  assert.match(seen, /^upstreams +.*vllm up/m);
  assert.match(await follow('Back up, and try the backup'), /entries, every balance agrees/);
  const allowed = await follow('Back up, and try the backup');
  assert.match(allowed, /^Kept \/etc\/purser\/purser\.yaml\.$/m);
  assert.match(allowed, /the service may write \/mnt\/backups\.$/m);
  await until('the service makes a backup in its sandbox', () =>
    sh('ls /mnt/backups/purser-*.db').catch(() => undefined),
  );
  await isReady(machine);
  await follow('Change a price while it runs');
  assert.match(await sh('purser models list'), /^qwen3:8b .* 0\.20 /m);
  const end = await follow('End');
  assert.match(end, /^available_usd +9\.98$/m); // 0.0000075 in each of two wallets, rounded up to a cent each.
  assert.match(end, /^ok {3}books: /m);
  assert.deepEqual(blocks, [], 'no block of the page is left');
  assert.equal(await sh('find /var/lib/purser ! -user purser'), '', 'root left no file of its own');

  await machine.reboot();
  await isReady(machine);
  assert.match(await sh('purser account show default'), /^available_usd +9\.98$/m);
});
