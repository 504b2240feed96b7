import assert from 'node:assert/strict';
import test from 'node:test';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { length, randomFrom, SEED } from '../helper/random.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { breakOff, counted, DONE, event, FINISHED, resetIt, said, streaming } from '../helper/sse.ts';
import { failure, halfBody, reset } from '../helper/upstream.ts';

/** The table "What came back decides" of the design, row by row: what a request costs by what its upstream did. */
const REQUEST_COUNT = length(40, 600);

type Handler = ReturnType<typeof failure>;
/** Tokens that were counted; or delivered, beside the bound of the prompt; nothing; or nobody knows. */
type Cost = { prompt: number; completion: number } | { delivered: number } | 'released' | 'uncertain';
type Kind = { what: string; plain: Handler; streamed: Handler; cost: Cost; code?: string };

const USAGE = { prompt_tokens: 10, completion_tokens: 5 };
const THOUGHT = { completion_tokens_details: { reasoning_tokens: 25 } };
const choices = (content: string) => [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }];
const answer = (content: string, usage?: unknown): Handler =>
  failure(200, { id: 'a', choices: choices(content), usage });
const error = { error: { message: 'no' } };
const whole = (content: string, usage?: unknown): Handler =>
  streaming(said(content), FINISHED, ...(usage === undefined ? [] : [counted(usage)]), DONE);
/** The same status, streamed or not. */
const status = (it: number, cost: Cost, code: string, body?: string): Kind => {
  const handler = failure(it, body);
  return {
    what: `status ${it}${body === undefined ? '' : ' of a proxy'}`,
    plain: handler,
    streamed: handler,
    cost,
    code,
  };
};

const KINDS: Kind[] = [
  { what: 'a usage', plain: answer('a', USAGE), streamed: whole('a', USAGE), cost: { prompt: 10, completion: 5 } },
  {
    what: 'a usage with thinking beside it',
    plain: answer('a', { ...USAGE, ...THOUGHT, total_tokens: 40 }),
    streamed: whole('a', { ...USAGE, ...THOUGHT, total_tokens: 40 }),
    cost: { prompt: 10, completion: 30 },
  },
  {
    what: 'a usage with a part of the prompt beside it',
    plain: answer('a', { ...USAGE, total_tokens: 40 }),
    streamed: whole('a', { ...USAGE, total_tokens: 40 }),
    cost: { prompt: 35, completion: 5 },
  },
  {
    what: 'a usage far above its bound',
    plain: answer('a', { prompt_tokens: 10, completion_tokens: 10_000_000 }),
    streamed: whole('a', { prompt_tokens: 10, completion_tokens: 10_000_000 }),
    cost: { prompt: 10, completion: 10_000_000 },
  },
  { what: 'no usage', plain: answer('abc'), streamed: whole('abc'), cost: { delivered: 3 } },
  {
    what: 'a usage that is none',
    plain: answer('äb', { prompt_tokens: '10' }),
    streamed: whole('äb', { prompt_tokens: '10' }),
    cost: { delivered: 3 },
  },
  {
    what: 'an answer that breaks off',
    plain: halfBody,
    streamed: streaming(breakOff),
    cost: 'uncertain',
    code: 'operation_uncertain',
  },
  { what: 'a reset', plain: reset, streamed: streaming(resetIt), cost: 'uncertain', code: 'operation_uncertain' },
  {
    what: 'an error and no choices',
    plain: failure(200, error),
    streamed: streaming(event(error), DONE),
    cost: 'released',
    code: 'gateway_unavailable',
  },
  {
    what: 'an object of the kind error',
    plain: failure(200, { object: 'error', message: 'no', code: 400 }),
    streamed: streaming(event({ object: 'error', message: 'no', code: 400 })),
    cost: 'released',
    code: 'invalid_request',
  },
  status(400, 'released', 'invalid_request'),
  status(404, 'released', 'model_not_found'),
  status(413, 'released', 'payload_too_large'),
  status(422, 'released', 'invalid_request'),
  status(429, 'released', 'rate_limited'),
  ...[301, 308, 401, 402, 403, 405, 500, 501, 502, 503, 507, 529].map((it) =>
    status(it, 'released', 'gateway_unavailable'),
  ),
  ...[500, 502, 503].map((it) => status(it, 'released', 'gateway_unavailable', '<html>no healthy upstream</html>')),
  ...[408, 425, 499, 504, 522, 524].map((it) => status(it, 'uncertain', 'operation_uncertain')),
];
/** What only a stream can do: it has begun, and does not come to its end. */
const CUT: Kind[] = (
  [
    ['a stream that breaks off', [said('ab'), breakOff], { delivered: 2 }],
    ['a stream that is reset', [said('ab'), resetIt], { delivered: 2 }],
    ['a stream that ends without its end', [said('ab'), said('c', { usage: USAGE })], { prompt: 10, completion: 5 }],
    ['a stream with an error in it', [said('ab'), event(error), DONE], { delivered: 2 }],
    [
      'a stream with an error and a usage',
      [said('ab'), event(error), counted(USAGE), DONE],
      { prompt: 10, completion: 5 },
    ],
  ] as [string, Parameters<typeof streaming>, Cost][]
).map(([what, steps, cost]) => ({
  what,
  plain: answer('a', USAGE),
  streamed: streaming(...steps),
  cost,
  code: 'answer_lost',
}));

type Row = { id: string; wallet: string; hold: bigint; charge: bigint | null; state: string; price: string };
const rowsOf = (purser: TestServer) =>
  purser.app.ledger.client
    .prepare('select id, wallet_id as wallet, hold_nanos as hold, charge_nanos as charge, state, price from operation')
    .all() as Row[];

/** What a request has to cost, in nano-dollars: 0.0001 USD, and 0.000001 and 0.000002 USD per token. */
function costOf(cost: Cost, { hold, price }: Row): bigint {
  if (cost === 'released') return 0n;
  if (cost === 'uncertain') return hold; // by the policy "charge"
  const tokens =
    'delivered' in cost ? [JSON.parse(price).bound_prompt_tokens, cost.delivered] : [cost.prompt, cost.completion];
  const [prompt, completion] = tokens.map(BigInt) as [bigint, bigint];
  const sum = 100_000n + prompt * 1000n + completion * 2000n;
  return sum < hold ? sum : hold;
}

test('what came back decides what is charged', async (t) => {
  const purser = await openTestServer(t, { unknownCountMax: Infinity });
  await purser.app.reaper.stop();
  for (const stream of [false, true])
    for (const kind of stream ? [...KINDS, ...CUT] : KINDS)
      await t.test(`${kind.what}${stream ? ', streamed' : ''}`, async () => {
        const gateway = await openGateway(purser);
        purser.upstream.handle = stream ? kind.streamed : kind.plain;
        const { text } = await gateway.chat({ stream });
        assert.equal(/"code":"(\w+)"/.exec(text)?.[1], kind.code, text);
        const row = rowsOf(purser).find((it) => it.wallet === gateway.walletId) as Row;
        assert.equal(row.state, kind.cost === 'uncertain' ? 'uncertain' : 'settled');
        if (kind.cost !== 'uncertain') assert.equal(row.charge, costOf(kind.cost, row));
      });
  assert.deepEqual(purser.problems(), []);
});

/** A client, one of four kinds: plain, streamed, and both gone before their end. */
async function askSomehow(
  url: string,
  gateway: Gateway,
  body: { seed: number; messages: object[] },
  stream: boolean,
  leaves: boolean,
): Promise<void> {
  if (!leaves) await gateway.chat({ ...body, stream });
  else if (stream) (await gateway.stream(body)).leave();
  else {
    const gone = AbortSignal.timeout(5);
    const init = { method: 'POST', signal: gone, headers: { authorization: `Bearer ${gateway.key}` } };
    const whole = { model: 'chat', max_tokens: 100, ...body };
    const headers = { ...init.headers, 'content-type': 'application/json' };
    await fetch(`${url}/v1/router/chat/completions`, { ...init, headers, body: JSON.stringify(whole) })
      .then((it) => it.text())
      .catch(() => {});
  }
}

test(`whatever upstreams, clients and closes do, each request costs what its upstream counted (seed ${SEED})`, async (t) => {
  t.diagnostic(`seed ${SEED}, ${REQUEST_COUNT} requests`);
  const random = randomFrom(SEED);
  const purser = await openTestServer(t, { settings: { close_wait_seconds: 0 }, unknownCountMax: Infinity });
  await purser.app.reaper.stop();
  const all = [...KINDS, ...CUT];
  const served = new Map<string, Kind>();
  purser.upstream.handle = async (call, response) => {
    const kind = all[Number(call.body.seed)] as Kind;
    const id = String(call.headers['idempotency-key']);
    assert(!served.has(id), 'no operation is called twice');
    served.set(
      id,
      call.body.stream ? kind : { ...kind, cost: CUT.includes(kind) ? { prompt: 10, completion: 5 } : kind.cost },
    );
    await new Promise((resolve) => setTimeout(resolve, Number(call.body.seed) % 7));
    await (call.body.stream ? kind.streamed : kind.plain)(call, response);
  };
  const gateways = await Promise.all(Array.from({ length: 8 }, () => openGateway(purser)));
  let asked = 0;
  await Promise.all(
    Array.from({ length: 16 }, async () => {
      while (asked < REQUEST_COUNT) {
        // Each is another question: the same one again would be taken for the retry of an unknown outcome.
        const messages = [{ role: 'user', content: String(asked++) }];
        const at = Math.floor(random() * gateways.length);
        const gateway = gateways[at] as Gateway;
        const seed = Math.floor(random() * all.length);
        await askSomehow(purser.url, gateway, { seed, messages }, random() < 0.5, random() < 0.2);
        if (random() > 0.03) continue;
        gateways[at] = await openGateway(purser);
        await purser.ask('POST', '/v1/run/close', { token: gateway.token });
      }
    }),
  );
  await purser.app.inFlight.drained();
  purser.clock.advance(901);
  await purser.app.reaper.runOnce();

  const rows = rowsOf(purser);
  t.diagnostic(`${rows.length} operations, ${served.size} calls`);
  assert(served.size > REQUEST_COUNT / 2);
  const spent = new Map<string, bigint>();
  for (const row of rows) {
    assert.equal(row.state, 'settled');
    const kind = served.get(row.id);
    // Whatever was never served has cost nothing; of what a close decided the policy is the same.
    assert.equal(row.charge, kind ? costOf(kind.cost, row) : 0n, `${row.id} ${kind?.what}`);
    spent.set(row.wallet, (spent.get(row.wallet) ?? 0n) + (row.charge as bigint));
  }
  for (const id of served.keys())
    assert(
      rows.some((row) => row.id === id),
      'no call without its row',
    );
  for (const [id, sum] of spent) assert.deepEqual([purser.wallet(id).spent, purser.wallet(id).held], [sum, 0n]);
  assert.deepEqual(purser.problems(), []);
});
