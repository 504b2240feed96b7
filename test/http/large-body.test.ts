import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { getPriority } from 'node:os';
import test from 'node:test';
import { createMemoryQuota } from '../../src/http/memory-quota.ts';
import { createModelRequests } from '../../src/http/model-requests.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer } from '../helper/server.ts';
import { completionStream } from '../helper/sse.ts';
import { childOf, walletOf } from '../helper/tenants.ts';

/** Enough for a body to be read in the worker thread. */
const LONG = 'a "quoted" line\n'.repeat(20_000);
const messages = (content = LONG) => [{ role: 'user', content }];

test('a large body is forwarded, priced, and answered again under its key as a small one is', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const first = await gateway.chat({ messages: messages() }, 'k');
  assert.equal(first.status, 200, first.text);
  assert.deepEqual(purser.upstream.calls[0]?.body, {
    model: 'real/chat',
    messages: messages(),
    max_tokens: 100,
    stream: false,
  });
  const again = await gateway.chat({ messages: messages() }, 'k');
  assert.deepEqual([again.status, again.text], [200, first.text]);
  const other = await gateway.chat({ messages: messages(`${LONG}.`) }, 'k');
  assert.equal(other.body.error.code, 'idempotency_conflict');
  assert.equal(purser.upstream.calls.length, 1);
});

test('a large body joins the attempt of its key that runs', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const ask = () => gateway.chat({ messages: messages() }, 'k');
  const answers = await Promise.all([ask(), ask()]);
  assert.deepEqual(
    answers.map(({ status, text }) => [status, text]),
    [
      [200, answers[0]?.text],
      [200, answers[0]?.text],
    ],
  );
  assert.equal(purser.upstream.calls.length, 1);
});

test('a large body is streamed, and beside it small ones', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completionStream();
  const answers = await Promise.all(
    Array.from({ length: 12 }, (_, i) => gateway.streamed(i % 2 ? { messages: messages(`${i}${LONG}`) } : {})),
  );
  for (const answer of answers) assert.match(answer.text, /\[DONE\]/);
  const contents = purser.upstream.calls.map(({ body }) => (body.messages as { content: string }[])[0]?.content);
  const asked = Array.from({ length: 12 }, (_, i) => (i % 2 ? `${i}${LONG}` : 'hi'));
  assert.deepEqual(contents.sort(), asked.sort());
});

/** Counts the threads of this process that let the main one go first, by the nice value, field 19 of proc_pid_stat(5). */
const polite = () =>
  readdirSync('/proc/self/task').filter((id) => {
    const afterName = readFileSync(`/proc/self/task/${id}/stat`, 'utf8').split(') ').at(-1)?.split(' ') ?? [];
    return Number(afterName[19 - 3]) > getPriority(process.pid);
  }).length;

test('the thread that reads a large body lets all others go first', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const before = polite();
  await gateway.chat({});
  assert.equal(polite(), before, 'a small body is read where it came');
  await gateway.chat({ messages: messages() });
  assert.equal(polite(), before + 1);
});

test('in a process that is nice itself such a thread still goes last', () => {
  const module = new URL('../../src/files/worker.ts', import.meta.url);
  const inside = `import(${JSON.stringify(module.href)}).then(({ lowerPriority }) => {
    lowerPriority();
    console.log(require('node:os').getPriority(0));
  })`;
  const script = `new (require('node:worker_threads').Worker)(${JSON.stringify(inside)}, { eval: true })`;
  assert.equal(execFileSync('nice', ['-n', '15', process.execPath, '--eval', script], { encoding: 'utf8' }), '19\n');
});

test('large bodies are refused with the same words as small ones', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const refused = async (body: object) => {
    const { status, body: answer } = await gateway.chat(body);
    return [status, answer.error.code, answer.error.param, answer.error.message];
  };
  const nested = (levels: number): unknown => (levels ? [nested(levels - 1)] : 0);
  for (const wrong of [
    { model: 7 },
    { model: 'unknown' },
    { messages: [] },
    { max_tokens: 0 },
    { audio: {} },
    { stop: nested(101) },
    { stop: Array(50_000).fill(0) },
  ])
    assert.deepEqual(
      await refused({ messages: messages(), ...wrong }),
      await refused({ messages: messages('a'), ...wrong }),
    );
  assert.deepEqual(purser.upstream.calls, []);
});

test('requests that wait for the thread when it ends are failed, and the next one starts another', async (t) => {
  const purser = await openTestServer(t);
  const requests = createModelRequests(() => purser.app.catalogue);
  t.after(() => requests.close());
  const read = () => {
    const body = Buffer.from(JSON.stringify({ model: 'chat', messages: messages() }));
    return requests.read(body, { kind: 'routerChat', isKeyed: false }, createMemoryQuota().open('a'), {
      treeId: 'a',
      accountId: 'a',
    });
  };
  const waiting = Promise.resolve(read());
  const failed = assert.rejects(waiting, /thread that reads large bodies has ended/);
  await requests.close();
  await failed;
  const { model } = (await read()) as { model: string };
  assert.equal(model, 'chat');
});

test('large bodies are read in turns of accounts, and of the trees of an account', async (t) => {
  const purser = await openTestServer(t);
  const requests = createModelRequests(() => purser.app.catalogue);
  t.after(() => requests.close());
  const share = createMemoryQuota().open('a');
  const order: string[] = [];
  const read = async (accountId: string, treeId: string, name: string) => {
    const body = Buffer.from(JSON.stringify({ model: 'chat', messages: messages() }));
    await requests.read(body, { kind: 'routerChat', isKeyed: false }, share, { treeId, accountId });
    order.push(name);
  };
  await Promise.all([
    ...['a1', 'a2', 'a3', 'a4'].map((name) => read('one', 'a', name)),
    ...['b1', 'b2'].map((name) => read('one', 'b', name)),
    ...['c1', 'c2', 'c3'].map((name) => read('two', 'c', name)),
    read('three', 'd', 'd1'),
  ]);
  assert.deepEqual(order, ['a1', 'a2', 'c1', 'd1', 'b1', 'c2', 'a3', 'c3', 'b2', 'a4']);
});

test('large bodies of a wallet and of its children make another wallet wait for one of them', async (t) => {
  const purser = await openTestServer(t);
  const mine = { accountId: purser.accountId, accountKey: purser.accountKey };
  const attacker = await walletOf(purser, mine);
  const tokens = [attacker.token];
  for (let i = 0; i < 3; i++) tokens.push((await childOf(purser, attacker.token)).token);
  const other = await walletOf(purser, mine);
  const { read } = purser.app.modelRequests;
  const order: string[] = [];
  const waiting: (() => void)[] = [];
  const eight = Promise.withResolvers<void>();
  /** Reads once all nine have come, in the order in which they have. */
  purser.app.modelRequests.read = async (...[bytes, asked, share, tenant]) => {
    await new Promise<void>((resolve) => {
      waiting.push(resolve);
      if (waiting.length === 8) eight.resolve();
      if (waiting.length === 9) for (const go of waiting) go();
    });
    const name = bytes.includes('other') ? 'other' : 'attacker';
    const request = await read(bytes, asked, share, tenant);
    order.push(name);
    return request;
  };
  const answers = [...tokens, ...tokens].map((token) => purser.chat(token, { messages: messages() }));
  await eight.promise;
  answers.push(purser.chat(other.token, { messages: messages(`other${LONG}`) }));
  await Promise.all(answers);
  assert.equal(order.indexOf('other'), 2, `after the one being read, and one: ${order}`);
});
