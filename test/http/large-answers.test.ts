import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { type IncomingMessage, request as send } from 'node:http';
import test, { type TestContext } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { createReadingThread, readerOfAnswers } from '../../src/http/reading-thread.ts';
import { createAnswerRooms } from '../../src/router/answer-room.ts';
import { READ_HERE } from '../../src/router/apart.ts';
import { openUpstream as openClient } from '../../src/router/upstream.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer } from '../helper/server.ts';
import { addTenant, walletOf } from '../helper/tenants.ts';
import { gate, openUpstream } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';

// A small request may have a large answer, which costs its wallet next to nothing: what it costs everybody else is bounded.

/** As many large answers of a tree of wallets are in memory. */
const ROOM_COUNT = 4;
const USAGE = { prompt_tokens: 5, completion_tokens: 5, total_tokens: 10 };
const answerOf = (bytes: number) =>
  Buffer.from(
    JSON.stringify({
      choices: [{ index: 0, message: { role: 'assistant', content: 'x'.repeat(bytes) }, finish_reason: 'stop' }],
      usage: USAGE,
    }),
  );

/** Opens a server whose model server has large answers. Those of the gateway's wallet are kept from being read until `read`. */
async function open(t: TestContext, upstream: object = {}) {
  const purser = await openTestServer(t, {
    change: (all: any) => ({
      ...all,
      router: { ...all.router, upstreams: all.router.upstreams.map((it: object) => ({ ...it, ...upstream })) },
    }),
  });
  const gateway = await openGateway(purser);
  const stranger = await walletOf(purser, await addTenant(purser, 'other'));
  purser.upstream.handle = (_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(answerOf(400_000));
  };
  const { readApart } = purser.app;
  const reading = Promise.withResolvers<void>();
  let comeCount = 0;
  purser.app.readApart = (tenant) => {
    const apart = readApart(tenant);
    if (tenant.treeId !== gateway.walletId) return apart;
    return (async (name: 'answer', bytes: Buffer, api: 'chat') => {
      if (name === 'answer') comeCount++;
      await reading.promise;
      return apart(name, bytes, api);
    }) as typeof apart;
  };
  const come = (count: number) =>
    until(
      () => `${comeCount} answers have come`,
      () => comeCount >= count,
    );
  return { purser, gateway, stranger, come, comeCount: () => comeCount, read: reading.resolve };
}

test('a tree of wallets has few large answers in memory, and a stranger gets his', async (t) => {
  const { purser, gateway, stranger, come, comeCount, read } = await open(t);
  const answers = Array.from({ length: 9 }, (_, seed) => gateway.chat({ seed, stream: seed % 2 === 1 }));
  await purser.upstream.arrived(9);
  await come(ROOM_COUNT);
  for (let i = 0; i < 2; i++) assert.equal((await purser.chat(stranger.token)).status, 200);
  assert.equal(comeCount(), ROOM_COUNT);
  read();
  for (const { status } of await Promise.all(answers)) assert.equal(status, 200);
  assert.equal(comeCount(), 9);
  await gateway.quiet();
  assert.deepEqual(purser.problems(), []);
});

for (const stream of [false, true])
  test(`an answer that waits for its room has no place at the model server, ${stream ? 'streamed' : 'whole'}`, async (t) => {
    const { purser, gateway, stranger, come, read } = await open(t, { max_concurrent: ROOM_COUNT + 1 });
    const answers = Array.from({ length: ROOM_COUNT }, (_, seed) => gateway.chat({ seed }));
    await come(ROOM_COUNT);
    answers.push(gateway.chat({ stream }));
    await purser.upstream.arrived(ROOM_COUNT + 1);
    let status = 429;
    for (let i = 0; status === 429 && i < 500; i++) ({ status } = await purser.chat(stranger.token));
    assert.equal(status, 200);
    read();
    for (const { status } of await Promise.all(answers)) assert.equal(status, 200);
    await gateway.quiet();
    assert.deepEqual(purser.problems(), []);
  });

for (const stream of [false, true]) {
  /** Asks a server whose answer waits for its room until `enter`, under limits of 100 seconds. Their clock is the test's. */
  async function askWithoutRoom(t: TestContext) {
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const upstream = await openUpstream(t);
    const client = openClient({
      name: 'it',
      base_url: upstream.url,
      timeout_seconds: 100,
      connect_timeout_seconds: 100,
    });
    t.after(() => client.close());
    const [waits, room] = Array.from({ length: 2 }, () => Promise.withResolvers<void>());
    const rest = Promise.withResolvers<'whole' | 'broken'>();
    const late = gate(async (_, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      const bytes = answerOf(400_000);
      response.write(bytes.subarray(0, 200_000));
      if ((await rest.promise) === 'whole') response.end(bytes.subarray(200_000));
      else response.destroy();
    });
    upstream.handle = late.handler;
    let isEntered = false;
    const enter = () => {
      waits?.resolve();
      return isEntered ? undefined : room?.promise;
    };
    const asked = { api: 'chat', body: Buffer.from('{}'), reader: { ...READ_HERE, enter } } as const;
    const reply = client.ask(asked, 'op_test', stream);
    await upstream.arrived(1);
    t.mock.timers.tick(90_000);
    late.open();
    await waits?.promise;
    return {
      reply,
      async enter() {
        isEntered = true;
        room?.resolve();
        await nextTurn();
      },
      end: rest.resolve,
    };
  }
  const way = stream ? 'streamed' : 'whole';

  test(`the time for which an answer is held back here is not its server's, ${way}`, async (t) => {
    const { reply, enter, end } = await askWithoutRoom(t);
    t.mock.timers.tick(90_000);
    await enter();
    t.mock.timers.tick(90_000);
    end('whole');
    assert.equal((await reply).kind, 'answered');
  });

  test(`an answer that is held back here for too long, or breaks off then, is no failure of its server, ${way}`, async (t) => {
    const late = { kind: 'unknown', isLate: true, isAlive: true };
    const waiting = await askWithoutRoom(t);
    t.mock.timers.tick(100_000);
    assert.deepEqual(await waiting.reply, { ...late, reason: 'upstream it: no room for its answer within 100 s' });
    t.mock.timers.reset();
    const reading = await askWithoutRoom(t);
    await reading.enter();
    t.mock.timers.tick(100_000);
    assert.deepEqual(await reading.reply, { ...late, reason: 'upstream it: no end of its answer within 100 s' });
    t.mock.timers.reset();
    const broken = await askWithoutRoom(t);
    await broken.enter();
    broken.end('broken');
    const { reason: _, ...outcome } = (await broken.reply) as { reason?: string };
    assert.deepEqual(outcome, { kind: 'unknown', isAlive: true });
  });
}

test('large answers are read in turns of accounts, and of the trees of an account', async () => {
  const thread = createReadingThread();
  const readerOf = readerOfAnswers(thread);
  const order: string[] = [];
  const read = async (accountId: string, treeId: string) => {
    await readerOf({ accountId, treeId })('answer', answerOf(200_000), 'chat');
    order.push(treeId);
  };
  const all = ['a1', 'a1', 'a1', 'a2'].map((treeId) => read('a', treeId));
  await Promise.all([...all, read('b', 'b1')]);
  assert.deepEqual(order, ['a1', 'a1', 'b1', 'a2', 'a1']);
  await thread.close();
});

test('rooms are given back, first come first served, also of those who still wait', async () => {
  const rooms = createAnswerRooms(2);
  const [first, second, third, fourth, fifth] = Array.from({ length: 5 }, () => rooms('mine'));
  const other = rooms('other');
  assert.deepEqual([first?.enter(), second?.enter(), first?.enter(), other.enter()], Array(4).fill(undefined));
  const entered: string[] = [];
  const waits = [third, fourth, fifth].map((it, i) => it?.enter()?.then(() => entered.push(`${i + 3}`)));
  assert.equal(third?.enter() instanceof Promise, true);
  fourth?.leave(); // It was given up.
  await waits[1];
  first?.leave();
  first?.leave();
  await waits[0];
  assert.deepEqual(entered, ['4', '3']);
  second?.leave();
  await waits[2];
  third?.leave();
  fifth?.leave();
  assert.deepEqual([rooms('mine').enter(), rooms('mine').enter()], [undefined, undefined]);
});

/** More than a connection on loopback takes of an answer that its client does not read. */
const UNREAD_BYTES = 14 * 1024 * 1024;

/** Opens a server where a tree of wallets has one room, and counts how often each owner has asked for it. */
async function openWithOneRoom(t: TestContext) {
  const { purser, gateway, stranger, read } = await open(t);
  read();
  const rooms = createAnswerRooms(1);
  const asked = new Map<string, number>();
  purser.app.answerRooms = (owner) => {
    const room = rooms(owner);
    return {
      ...room,
      enter() {
        asked.set(owner, (asked.get(owner) ?? 0) + 1);
        return room.enter();
      },
    };
  };
  const asks = (count: number) =>
    until(
      () => `the room was asked for ${asked.get(gateway.walletId)} times`,
      () => (asked.get(gateway.walletId) ?? 0) >= count,
    );
  return { purser, gateway, stranger, rooms, asked, asks };
}

for (const stream of [false, true])
  test(`a replay of a large answer waits for its room, and no other tenant does: ${stream ? 'a transcript' : 'whole'}`, async (t) => {
    const { purser, gateway, stranger, rooms, asked, asks } = await openWithOneRoom(t);
    purser.upstream.handle = (_, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      const content = randomBytes(300_000).toString('base64');
      response.end(JSON.stringify({ choices: [{ message: { content }, finish_reason: 'stop' }], usage: USAGE }));
    };
    const first = await gateway.chat({ stream }, 'mine');
    assert.equal((await purser.chat(stranger.token, {}, 'his')).status, 200);
    await gateway.quiet();
    const own = rooms(gateway.walletId);
    await own.enter();
    const before = asked.get(gateway.walletId) as number;
    let isAnswered = false;
    const again = gateway.chat({ stream }, 'mine').finally(() => {
      isAnswered = true;
    });
    await asks(before + 1);
    for (let i = 0; i < 2; i++) assert.equal((await purser.chat(stranger.token, {}, 'his')).status, 200);
    assert.equal(isAnswered, false);
    own.leave();
    const { status, headers, text } = await again;
    assert.deepEqual([status, headers['idempotent-replayed']], [200, 'true']);
    if (!stream) assert.equal(text, first.text);
    assert.deepEqual(purser.problems(), []);
  });

test('whoever leaves while the answer that was kept for it waits for its room leaves that to the next', async (t) => {
  const { purser, gateway, rooms, asks, asked } = await openWithOneRoom(t);
  const { handler, open: go } = gate((_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(answerOf(400_000));
  });
  purser.upstream.handle = handler;
  const own = rooms(gateway.walletId);
  /** Asks, and leaves once the server does what `when` waits for. */
  const leave = async (when: () => Promise<unknown>) => {
    const leaving = new AbortController();
    const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };
    const gone = gateway.ask('POST', '/chat/completions', { body, signal: leaving.signal }).catch(() => {});
    await when();
    leaving.abort();
    await gone;
  };
  await leave(() => purser.upstream.arrived(1));
  go();
  await gateway.quiet();
  await own.enter();
  const before = asked.get(gateway.walletId) as number;
  await leave(() => asks(before + 1));
  await until(
    () => 'its place is vacant',
    () => purser.app.retries.abandonedCount() === 1,
  );
  const next = gateway.chat();
  await asks(before + 2);
  own.leave();
  const { status, headers } = await next;
  assert.deepEqual([status, headers['idempotent-replayed']], [200, 'true']);
  assert.equal(purser.upstream.calls.length, 1);
  assert.equal(purser.app.retries.abandonedCount(), 0);
  assert.deepEqual(purser.problems(), []);
});

test('a large answer has its room until the last of those who share it has taken it', async (t) => {
  const { purser, gateway, stranger, asks } = await openWithOneRoom(t);
  const { handler, open: go } = gate((_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(answerOf(UNREAD_BYTES));
  });
  purser.upstream.handle = handler;
  /** Asks without reading the answer. */
  async function unread(key: string): Promise<IncomingMessage> {
    const { port } = new URL(purser.url);
    const headers = {
      authorization: `Bearer ${gateway.key}`,
      'content-type': 'application/json',
      'idempotency-key': key,
    };
    const path = '/v1/router/chat/completions';
    const asking = send({ host: '127.0.0.1', port, path, method: 'POST', headers, agent: false });
    asking.end(JSON.stringify({ model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 }));
    const [answer] = await once(asking, 'response');
    return answer;
  }
  const [driver, joined] = [unread('shared'), unread('shared')];
  await purser.upstream.arrived(1);
  go();
  const [first, second] = await Promise.all([driver, joined]);
  await gateway.quiet();
  let isAnswered = false;
  const next = gateway.chat({ seed: 2 }).finally(() => {
    isAnswered = true;
  });
  await asks(2);
  first.destroy();
  for (let i = 0; i < 2; i++) assert.equal((await purser.chat(stranger.token)).status, 200);
  assert.equal(isAnswered, false);
  second.destroy();
  assert.equal((await next).status, 200);
  assert.deepEqual(purser.problems(), []);
});

test('those who share a large answer share its translation', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const { handler, open: go } = gate((_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(answerOf(400_000));
  });
  purser.upstream.handle = handler;
  const { readApart } = purser.app;
  let count = 0;
  purser.app.readApart = (tenant) => {
    const apart = readApart(tenant);
    return ((name: 'answer', ...given: [Buffer, 'chat']) => {
      if ((name as string) === 'translated') count++;
      return apart(name, ...given);
    }) as typeof apart;
  };
  const { find } = purser.app.inFlight;
  let joinedCount = 0;
  purser.app.inFlight.find = (...key) => {
    const found = find(...key);
    if (found) joinedCount++;
    return found;
  };
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };
  const answers = Array.from({ length: 5 }, () => gateway.ask('POST', '/messages', { body, key: 'shared' }));
  await purser.upstream.arrived(1);
  await until(
    () => `${joinedCount} have joined`,
    () => joinedCount === 4,
  );
  go();
  const texts = (await Promise.all(answers)).map(({ status, text }) => [status, text]);
  assert.deepEqual(texts, Array(5).fill(texts[0]));
  assert.equal(texts[0]?.[0], 200);
  assert.equal(count, 1);
});
