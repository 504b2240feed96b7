import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { installation } from '../helper/executable.ts';
import { openUpstream } from '../helper/upstream.ts';

const ROOT = join(import.meta.dirname, '../..');
const PAGE = readFileSync(join(ROOT, 'docs/security.md'), 'utf8');

/** What the page says of secrets stands in canary.test.ts; of abuse in abuse.test.ts. */

test('what was asked is kept nowhere, what was answered in the database alone, and every file is its owner’s', async (t) => {
  const [prompt, answer] = [`prompt-${randomUUID()}`, `answer-${randomUUID()}`];
  const upstream = await openUpstream(t);
  upstream.handle = (_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ choices: [], answer, usage: { prompt_tokens: 1, completion_tokens: 1 } }));
  };
  const purser = installation(t, { upstream, settings: { log_level: 'debug' } });
  const server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 1000 });
  const create = { account: 'default', name: 'agent', budget_cents: 500 };
  const { agent_token: token } = await purser.operate('wallet.create', create);
  const body = { model: 'chat', messages: [{ role: 'user', content: prompt }], max_tokens: 100 };
  const asked = await server.ask('POST', '/v1/chat/completions', { token, key: randomUUID(), body });
  assert.equal(asked.body.answer, answer);
  await server.stop();

  const files = readdirSync(purser.directory, { withFileTypes: true, recursive: true })
    .filter((it) => it.isFile())
    .map((it) => join(it.parentPath, it.name));
  const holders = (text: string) => files.filter((it) => readFileSync(it).includes(text));
  const log = server.output.stdout + server.output.stderr;
  assert.match(log, /operation\.charged/);
  assert.deepEqual([holders(prompt), log.includes(prompt)], [[], false]);
  assert.deepEqual([holders(answer), log.includes(answer)], [[join(purser.directory, 'purser.db')], false]);
  const secret = files.filter((it) => /purser\.db|master\.key|ledger\./.test(it));
  assert(secret.length >= 3);
  for (const it of secret) assert.equal(statSync(it).mode & 0o077, 0, `${it} is open to others`);
});

test('every page, test and metric that the page names is there', () => {
  for (const [, name] of PAGE.matchAll(/\]\(([\w./-]+)\)/g))
    assert(existsSync(join(ROOT, 'docs', name as string)), `docs/${name}`);
  for (const [name] of PAGE.matchAll(/\btest\/[\w/-]+\.test\.ts/g)) assert(existsSync(join(ROOT, name)), name);
  const metrics = readFileSync(join(ROOT, 'src/telemetry/metrics.ts'), 'utf8');
  for (const [, name] of PAGE.matchAll(/`purser_(\w+?)(?:\{[^`]*\})?`/g)) assert(metrics.includes(`'${name}'`), name);
});

test('the bounds that the page states are those of the source', () => {
  const source = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
    .filter((it) => it.endsWith('.ts'))
    .map((it) => readFileSync(join(ROOT, 'src', it), 'utf8'))
    .join('\n');
  const bounds: [said: string, written: string][] = [
    ['20 s', 'const HEADERS_MILLISECONDS = 20_000;'],
    ['120 s', 'const REQUEST_MILLISECONDS = 120_000;'],
    ['60 s', 'const STALL_MILLISECONDS = 60_000;'],
    ['16,384', 'const CONNECTION_COUNT_MAX = 16_384;'],
    ['64 MiB', '{ each: 64 * 1024 * 1024, all: 256 * 1024 * 1024 }'],
    ['256 MiB', '{ each: 64 * 1024 * 1024, all: 256 * 1024 * 1024 }'],
    ['32 more', 'const WAITING_COUNT_MAX = 32;'],
    ['a quarter', 'const TREE_SHARE = 1 / 4;'],
    ['64 connections without a key', 'const UNAUTHENTICATED_COUNT_MAX = 64;'],
    ['16 connections', 'const CONNECTION_COUNT_MAX = 16;'],
    ['cap-drop ALL', "CapDrop: ['ALL']"],
    ['no-new-privileges', "SecurityOpt: ['no-new-privileges']"],
  ];
  for (const [said, written] of bounds) {
    assert(PAGE.replace(/\s+/g, ' ').includes(said), `the page does not say: ${said}`);
    assert(source.includes(written), `the source does not say: ${written}`);
  }
});
