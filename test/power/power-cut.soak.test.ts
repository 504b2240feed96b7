import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { findOperation } from '../../src/ledger/operation.ts';
import { verifyLedger } from '../../src/ledger/verify.ts';
import { findWallet } from '../../src/ledger/wallet.ts';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE, type Installation, installation, type Serving } from '../helper/executable.ts';
import { randomFrom, SEED } from '../helper/random.ts';
import { openUpstream } from '../helper/upstream.ts';
import { CUTS, identify, imageOf, isWritten, LUCKS, layDown, reopen } from './cuts.ts';
import { Disk, type Image, type Luck } from './disk.ts';
import { readTrace, type Step, straced } from './trace.ts';

/**
 * A power cut: what was not synced may be gone. A real server works on real files under strace, and a client keeps its
 * own journal of what was acknowledged. From the trace the disk is rebuilt as it may be found after a cut at any call, and
 * every such disk has to hold everything that was acknowledged by then. With synchronous=NORMAL it must not: that proves
 * that the test would see it.
 */
const WORKER_COUNT = 6;
const ANSWER_COUNT = 300;
/** Answers of some 80 KB make a log of more than 16 MiB: it is written back to the database under the load. */
const PADDING_COUNT = 2200;
const CHATS_A_WALLET = 12;
const CHARGE = 10n * 1000n + 5n * 2000n + 100_000n;

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const NODE = process.execPath;
const BUILDS = {
  FULL: [EXECUTABLE],
  NORMAL: [NODE, '--import', join(ROOT, 'test/power/normal.mjs'), join(ROOT, 'cli/main.ts')],
};

/** What a client was told, by the id of the request that told it. */
type Journal = Map<string, { kind: 'wallet' | 'chat' | 'close'; id: string }>;

/** Agents that open wallets, spend and close, until so much was acknowledged. */
async function load(server: Serving, accountKey: string, count: number): Promise<Journal> {
  const journal: Journal = new Map();
  const messages = [{ role: 'user', content: 'x'.repeat(500) }];
  const worker = async () => {
    while (journal.size < count) {
      const ask = async (kind: 'wallet' | 'chat' | 'close', path: string, token: string, body?: object) => {
        const { status, headers, body: it, text } = await server.ask('POST', path, { token, key: randomUUID(), body });
        assert.equal(Math.floor(status / 100), 2, text);
        journal.set(String(headers['x-request-id']), { kind, id: it.id });
        return it;
      };
      const order = { name: 'agent', budget_cents: 100, expires_in_seconds: 0 };
      const wallet = await ask('wallet', '/v1/wallets', accountKey, order);
      for (let i = 0; i < CHATS_A_WALLET; i++)
        await ask('chat', '/v1/chat/completions', wallet.agent_token, { model: 'chat', messages, max_tokens: 100 });
      await ask('close', `/v1/wallets/${wallet.id}/close`, accountKey);
    }
  };
  await Promise.all(Array.from({ length: WORKER_COUNT }, worker));
  return journal;
}

/** Serves under strace and ends by a kill; answers what it did, as far as it concerns the data directory and the clients. */
async function record(
  t: TestContext,
  purser: Installation,
  trace: string,
  work: (server: Serving) => Promise<void>,
): Promise<Step[]> {
  const server = await purser.serve();
  await work(server);
  server.kill('SIGKILL');
  await server.ended;
  await isWritten(trace, server.pid, 'killed by SIGKILL');
  t.diagnostic(`trace of ${Math.round(statSync(trace).size / 1e6)} MB`);
  return readTrace(trace, (path) => path.startsWith(purser.directory));
}

/** What of the journal is missing in this directory. */
async function missing(directory: string, journal: Journal, acknowledged: ReadonlySet<string>) {
  await using app = await reopen(directory);
  const { read, client } = app.ledger;
  const lost: string[] = [];
  for (const [requestId, { kind, id }] of journal) {
    if (!acknowledged.has(requestId)) continue;
    const isThere =
      kind === 'chat'
        ? findOperation(read, id)?.charge === CHARGE
        : kind === 'wallet'
          ? findWallet(read, id) !== undefined
          : findWallet(read, id)?.status === 'closed';
    if (!isThere) lost.push(`${kind} ${id}`);
  }
  return { lost, fault: app.health.fault, problems: verifyLedger(client).problems };
}

/** Counts the writes to a file. */
function writesTo(path: string, steps: readonly Step[]): number {
  const open = new Map<number, string>();
  let count = 0;
  for (const step of steps) {
    if (step.kind === 'open') open.set(step.fd, step.path);
    if (step.kind === 'write' && open.get(step.fd) === path) count++;
  }
  return count;
}

type Verdict = {
  at: number;
  luck: Luck;
  acknowledged: number;
  lost: string[];
  fault: string | undefined;
  problems: string[];
};

/** Cuts the power at random steps, and looks at each disk that may be left. */
async function cutEverywhere(
  t: TestContext,
  before: { directory: string; image: Image },
  steps: readonly Step[],
  journal: Journal,
  random: () => number,
): Promise<Verdict[]> {
  const disk = new Disk(before.directory, before.image);
  const cuts = new Set(Array.from({ length: CUTS }, () => Math.floor(random() * steps.length)));
  cuts.add(steps.length - 1);
  const acknowledged = new Set<string>();
  const verdicts: Verdict[] = [];
  for (const [at, step] of steps.entries()) {
    disk.take(step);
    if (step.kind === 'write')
      for (const [, id] of step.bytes.toString('latin1').matchAll(/^x-request-id: (req_\w+)\r$/gm))
        acknowledged.add(id as string);
    if (!cuts.has(at)) continue;
    for (const luck of LUCKS) {
      const directory = layDown(t, before.directory, disk.cut(luck, random), random);
      const found = await missing(directory, journal, acknowledged);
      rmSync(directory, { recursive: true, force: true });
      verdicts.push({ at, luck, acknowledged: [...acknowledged].filter((it) => journal.has(it)).length, ...found });
    }
  }
  return verdicts;
}

/** An installation with credit, recorded under load. */
async function recordLoad(t: TestContext, build: readonly string[]) {
  const upstream = await openUpstream(t);
  upstream.handle = ({ headers }, response) => {
    const usage = { prompt_tokens: 10, completion_tokens: 5 };
    const padding = randomUUID().repeat(PADDING_COUNT);
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ id: headers['idempotency-key'], choices: [], usage, padding }));
  };
  const directory = mkdtempSync(join(tmpdir(), 'purser-power-'));
  const plain = installation(t, { upstream, directory, command: build });
  const first = await plain.serve();
  const { accounts } = await plain.json('account', 'list');
  await plain.json('account', 'credit', accounts[0].id, '1000000c');
  const { key } = await plain.json('key', 'create', '--account', accounts[0].id, '--name', 'agents');
  await first.logged('disk.reserve_made'); // Else its megabytes are in the trace.
  await first.stop();

  const before = { directory, image: imageOf(directory) };
  const trace = join(mkdtempSync(join(tmpdir(), 'purser-trace-')), 'trace');
  t.after(() => rmSync(dirname(trace), { recursive: true, force: true }));
  const purser = installation(t, { upstream, directory, command: [...straced(trace), ...build] });
  let journal: Journal = new Map();
  const steps = await record(t, purser, trace, async (server) => {
    journal = await load(server, key, ANSWER_COUNT);
    await server.ask('GET', '/healthz'); // What was written for the last answer is in the trace by now.
  });
  return { before, steps, journal };
}

const figures = (verdicts: readonly Verdict[]) => {
  const lossy = verdicts.filter((it) => it.lost.length);
  const sum = (of: (it: Verdict) => number) => verdicts.reduce((total, it) => total + of(it), 0);
  return {
    lossy,
    text: `${verdicts.length} disks after a power cut, ${sum((it) => it.acknowledged)} acknowledged operations looked for on them, ${sum((it) => it.lost.length)} lost, on ${lossy.length} disks`,
  };
};

test(`FULL: no power cut loses anything acknowledged (seed ${SEED})`, async (t) => {
  if (!hasComponent(t, 'strace')) return;
  const { before, steps, journal } = await recordLoad(t, BUILDS.FULL);
  const pages = writesTo(join(before.directory, 'purser.db'), steps);
  t.diagnostic(`FULL: ${pages} pages written back to the database`);
  assert(pages > 1000, 'the log is written back under the load');
  const verdicts = await cutEverywhere(t, before, steps, journal, randomFrom(SEED));
  t.diagnostic(`FULL: ${figures(verdicts).text}`);
  assert.equal(verdicts.at(-1)?.acknowledged, journal.size, 'the trace has every answer');
  for (const { at, luck, lost, fault, problems } of verdicts)
    assert.deepEqual({ lost, fault, problems }, { lost: [], fault: undefined, problems: [] }, `step ${at}, ${luck}`);
});

test(`NORMAL: the same cuts lose what was acknowledged, and this test sees it (seed ${SEED})`, async (t) => {
  if (!hasComponent(t, 'strace')) return;
  const { before, steps, journal } = await recordLoad(t, BUILDS.NORMAL);
  const verdicts = await cutEverywhere(t, before, steps, journal, randomFrom(SEED));
  const { lossy, text } = figures(verdicts);
  const noticed = lossy.filter((it) => it.fault).length;
  t.diagnostic(`NORMAL: ${text}; ledger.head tells of it on ${noticed}`);
  assert(lossy.length > CUTS / 2, text);
});

test(`a power cut during the first start leaves what starts, and after it the same installation (seed ${SEED})`, async (t) => {
  if (!hasComponent(t, 'strace')) return;
  const random = randomFrom(SEED);
  const directory = mkdtempSync(join(tmpdir(), 'purser-power-'));
  const trace = join(mkdtempSync(join(tmpdir(), 'purser-trace-')), 'trace');
  t.after(() => rmSync(dirname(trace), { recursive: true, force: true }));
  const purser = installation(t, { directory, command: [...straced(trace), ...BUILDS.FULL] });
  const cli = installation(t, { directory });
  const before = { directory, image: imageOf(directory) };
  const steps = await record(t, purser, trace, async (server) => {
    const { accounts } = await cli.json('account', 'list');
    for (const cents of ['100c', '200c']) await cli.json('account', 'credit', accounts[0].id, cents);
    await server.ask('GET', '/readyz');
  });
  const { id } = await identify(directory);

  const disk = new Disk(directory, before.image);
  const first = steps.findIndex((it) => it.kind === 'open' && it.path.startsWith(directory));
  const cuts = new Set(Array.from({ length: CUTS }, () => first + Math.floor(random() * (steps.length - first))));
  let isServing = false;
  let same = 0;
  for (const [at, step] of steps.entries()) {
    disk.take(step);
    if (step.kind === 'write') isServing ||= step.bytes.includes('"event":"serving"');
    if (!cuts.has(at)) continue;
    for (const luck of LUCKS) {
      const left = layDown(t, directory, disk.cut(luck, random), random);
      const found = await identify(left).catch((error: Error) => {
        throw new Error(`step ${at}, ${luck}: ${error.message}`);
      });
      rmSync(left, { recursive: true, force: true });
      assert.deepEqual([found.fault, found.problems], [undefined, []], `step ${at}, ${luck}`);
      if (isServing) assert.equal(found.id, id, `step ${at}, ${luck}`);
      same += Number(isServing);
    }
  }
  t.diagnostic(
    `${cuts.size * LUCKS.length} disks after a power cut during the first start, all of them start; ${same} after it served`,
  );
});
