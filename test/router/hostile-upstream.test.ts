import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import test from 'node:test';
import { followFaults } from '../../src/base/fault.ts';
import { Secret } from '../../src/base/secret.ts';
import { resetConnection } from '../../src/net/reset.ts';
import { openUpstream } from '../../src/router/upstream.ts';
import { createRandom, length, type Random, SEED } from '../helper/random.ts';
import { waitFor } from '../helper/waiting.ts';
import { framed, hostileAnswer, mutated } from '../http/hostile-http.ts';

const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 };
const WHOLE = {
  id: 'x',
  object: 'chat.completion',
  choices: [
    {
      index: 0,
      message: {
        role: 'assistant',
        content: 'a',
        tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }],
      },
      finish_reason: 'stop',
    },
  ],
  usage,
};
const EVENTS = [
  { choices: [{ index: 0, delta: { role: 'assistant', content: 'a' }, finish_reason: null }] },
  {
    choices: [
      {
        index: 0,
        delta: { tool_calls: [{ index: 0, id: 'c', function: { name: 'f', arguments: '{' } }] },
        finish_reason: null,
      },
    ],
  },
  { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] },
  { choices: [], usage },
  { error: { message: 'no', code: 500 } },
];

/** A stream of events, some of which are not well-formed. */
function hostileEvents(random: Random): string {
  const lines = Array.from({ length: random.whole(0, 8) }, () => {
    const data =
      JSON.stringify(random.whole(1, 4) > 1 ? random.pick(EVENTS) : mutated(random, random.pick(EVENTS))) ?? '';
    const field = random.pick([
      'data: ',
      'data: ',
      'data: ',
      'data:',
      'data',
      'event: error\ndata: ',
      'id: 1\ndata: ',
      ': ',
      'retry: x\ndata: ',
      '\ufeffdata: ',
    ]);
    const text = random.whole(1, 12) === 1 ? data.slice(0, random.whole(0, data.length)) : data;
    return `${field}${text}${random.pick(['\n\n', '\n\n', '\r\n\r\n', '\r\r', '\n', ''])}`;
  });
  return lines.join('') + random.pick(['data: [DONE]\n\n', 'data: [DONE]', '', 'data: [DONE]\n\ndata: {}\n\n']);
}

test(`hostile answers of a model server fail their calls only (seed ${SEED})`, async (t) => {
  const random = createRandom(SEED);
  const server = createServer((socket) => {
    socket.on('error', () => {});
    socket.once('data', (asked) => {
      const choice = random.whole(1, 10);
      if (choice <= 2) return void socket.end(hostileAnswer(random));
      const others = ['201', '204', '301', '400', '401', '429', '500', '503', '504'];
      const status = random.whole(1, 3) === 1 ? random.pick(others) : '200';
      const isStream = asked.includes('"stream":true') !== (choice === 3);
      if (!isStream)
        return void socket.end(
          framed(random, status, JSON.stringify(random.whole(1, 4) === 1 ? WHOLE : mutated(random, WHOLE)) ?? ''),
        );
      const events = hostileEvents(random);
      const promised = random.whole(1, 3) === 1 ? `Content-Length: ${Buffer.byteLength(events) + 1}\r\n` : ''; // More than comes.
      socket.write(`HTTP/1.1 ${status} OK\r\nContent-Type: text/event-stream\r\n${promised}Connection: close\r\n\r\n`);
      if (random.whole(1, 20) === 1) resetConnection(socket);
      else socket.end(events);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const { port } = server.address() as { port: number };
  const settings = {
    name: 'x',
    base_url: `http://127.0.0.1:${port}/v1`,
    timeout_seconds: 20,
    connect_timeout_seconds: 20,
    api_key: new Secret('key'),
  };
  const upstream = openUpstream(settings as never);
  const faults: string[] = [];
  using _ = followFaults((where, error) => void faults.push(`${where}: ${(error as Error).stack}`));
  const outcomes: Record<string, number> = {};
  let left = length(500, 20_000);
  const worker = async () => {
    while (left-- > 0) {
      const isStream = random.whole(0, 1) === 1;
      const body = Buffer.from(`{"model":"x","messages":[],"stream":${isStream}}`);
      const reply = await upstream.ask(
        { api: random.pick(['chat', 'chat', 'embeddings', 'messages', 'responses']), body },
        'op_x',
        isStream,
      );
      let outcome: string = reply.kind;
      if (reply.kind === 'streaming')
        try {
          for await (const _runs of reply.events) if (random.whole(1, 30) === 1) break; // Its client has gone.
        } catch {
          outcome = 'broken off';
        }
      outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
    }
  };
  await Promise.all(Array.from({ length: 16 }, worker));
  await upstream.close();
  t.diagnostic(`${JSON.stringify(outcomes)}, ${faults.length} contained faults`);
  for (const kind of ['answered', 'streaming', 'refused', 'unknown', 'broken off'])
    assert((outcomes[kind] ?? 0) > 0, `${kind} is among ${JSON.stringify(outcomes)}`);
  // undici may throw where it reads its server; Purser's own code expects anything.
  const ours = faults.filter((it) => /^[^\n]*\n\s+at [^\n]*\/src\//.test(it));
  assert.deepEqual([...new Set(ours)].slice(0, 5), []);
});

const KEPT_ALIVE = {
  chat: 'data: {"choices":[]}\n\n',
  messages: 'event: ping\ndata: {"type":"ping"}\n\n',
  responses: 'data: {"type":"keepalive"}\n\n',
} as const;

for (const api of ['chat', 'messages', 'responses'] as const)
  for (const [what, event, count] of [
    ['many events', KEPT_ALIVE[api], 5000],
    ['long events', KEPT_ALIVE[api].replace('{', `{"more":"${'x'.repeat(1024 * 1024)}",`), 40],
  ] as const)
    test(`a stream of ${what} without an answer is not collected for ever: ${api}`, async (t) => {
      const server = createServer((socket) => {
        socket.on('error', () => {});
        socket.once('data', () => {
          socket.write('HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n');
          for (let i = 0; i < count; i++) socket.write(event); // And then nothing more: the call has all of its time left.
        });
      });
      server.listen(0, '127.0.0.1');
      await once(server, 'listening');
      t.after(() => server.close());
      const { port } = server.address() as { port: number };
      const settings = { name: 'x', base_url: `http://127.0.0.1:${port}/v1`, timeout_seconds: 3600 };
      const upstream = openUpstream({ ...settings, connect_timeout_seconds: 20 } as never);
      const asking = upstream.ask({ api, body: Buffer.from('{}') }, 'op_x', true);
      const reply = await waitFor('the stream has begun', asking);
      assert.equal(reply.kind, 'streaming');
      let bytes = 0;
      if (reply.kind === 'streaming')
        for await (const runs of reply.events) {
          for (const { raw } of runs) bytes += raw.length;
          if (bytes >= event.length * count) break;
        }
      assert.equal(bytes, event.length * count, 'nothing of it is lost, or comes twice');
      await upstream.close();
    });
