import assert from 'node:assert/strict';
import test from 'node:test';
import { type Installation, installation, type Serving } from '../helper/executable.ts';
import { MODELS } from '../helper/models.ts';
import { createRandom, length, type Random, SEED } from '../helper/random.ts';
import type { Answer, Asked } from '../helper/server.ts';
import {
  breakOff,
  counted,
  DONE,
  event,
  FINISHED,
  forever,
  openStream,
  resetIt,
  said,
  streaming,
} from '../helper/sse.ts';
import { completion, type FakeUpstream, failure, openUpstream, reset } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { type Booked, nanos, readBooks, sum } from './books.ts';

const REQUESTS = length(2000, 50_000);
/** A server is killed after so many requests, drawn anew for each. */
const LIFE = [300, 3000] as const;
const WORKERS = 24;
const CREDIT_CENTS = 100_000_000;
const [OPEN_MIN, OPEN_MAX] = [4, 24];
/** A request is settled for good once so many answers have come after its own. */
const ANSWERS_AFTER = 100;
const GATEWAY = '/v1/router/chat/completions';
/** Of the model `chat`, in nano-dollars. */
const [PROMPT, ANSWER, REQUEST] = [1000n, 2000n, 100_000n];
const TOKENS_MAX = 100;
const NANOS_PER_CENT = 10_000_000n;

/** How a model server answers, and how its answer ends. */
const ENDS = {
  whole: 40, // In one piece.
  refused: 4,
  lost: 3, // The connection is reset before anything came.
  stream: 25,
  uncounted: 5,
  'counted, broken': 5,
  'uncounted, broken': 5,
  'counted, nothing said': 3,
  'counted, an error in the middle': 3,
  'counted, cancelled': 4,
  'uncounted, cancelled': 4,
} as const;
type End = keyof typeof ENDS;
/** What a request asks the model server to do: its counts, and the bytes of its text. */
type Fate = { n: number; end: End; prompt: number; answer: number; bytes: number };

type Wallet = {
  id: string;
  token: string;
  gatewayKey: string;
  parent: Wallet | undefined;
  budgetCents: bigint;
  flying: number;
  isClosing: boolean;
  closed?: Answer['body'];
};
/** A request. `operations`: those of it that the model server saw. */
type Sent = Fate & {
  wallet: Wallet;
  operations: string[];
  /** A kill may have come before it was settled: then it may cost its hold. */
  isInterrupted: boolean;
  /** The whole answer has come. */
  isWhole?: boolean;
  /** How many answers had come when it was over. */
  settledAt?: number;
  /** Purser has left the model server. */
  isLeft?: boolean;
};

/** What an operation costs by its fate, from what it held. */
function costOf({ end, prompt, answer, bytes }: Fate, hold: bigint): bigint {
  const bound = hold - REQUEST - BigInt(TOKENS_MAX) * ANSWER;
  const counted = REQUEST + BigInt(prompt) * PROMPT;
  if (end === 'whole' || end === 'stream') return counted + BigInt(answer) * ANSWER;
  if (end === 'refused') return 0n;
  if (end === 'lost') return hold;
  if (end === 'counted, nothing said') return counted + ANSWER; // One token of the answer was told.
  return (end.startsWith('counted') ? counted : REQUEST + bound) + BigInt(bytes) * ANSWER;
}

const usageOf = (prompt: number, answer: number) => ({
  prompt_tokens: prompt,
  completion_tokens: answer,
  total_tokens: prompt + answer,
});

/** Makes the model server do what each request asks of it, and notes which operations it saw. */
function obey(upstream: FakeUpstream, sent: readonly Sent[]) {
  upstream.handle = async (call, response) => {
    upstream.calls.length = 0; // Nobody reads them, and there are many.
    const [{ content }] = call.body.messages as [{ content: string }];
    const fate = sent[JSON.parse(content).n] as Sent;
    fate.operations.push(String(call.headers['idempotency-key']));
    const { end, prompt, answer, bytes } = fate;
    if (end === 'whole') return completion(usageOf(prompt, answer))(call, response);
    if (end === 'refused') return failure(429)(call, response);
    if (end === 'lost') return reset(call, response);
    const begun = end.startsWith('counted') ? [said('', { usage: usageOf(prompt, 1) })] : [];
    const text = end === 'counted, nothing said' ? [] : [said('x'.repeat(bytes))];
    const last = {
      stream: [FINISHED, counted(usageOf(prompt, answer)), DONE],
      uncounted: [FINISHED, DONE],
      'counted, broken': [breakOff],
      'uncounted, broken': [resetIt],
      'counted, nothing said': [resetIt],
      'counted, an error in the middle': [event({ error: { message: 'no' } })],
      'counted, cancelled': [forever],
      'uncounted, cancelled': [forever],
    }[end];
    response.once('close', () => {
      fate.isLeft = true;
    });
    return streaming(...begun, ...text, ...last)(call, response);
  };
}

/** The lives of a server, one after the other: each is killed after some requests. */
function openLives(purser: Installation, random: Random) {
  let current = purser.serve();
  let left = random.whole(...LIFE);
  let kills = 0;
  return {
    kills: () => kills,
    current: () => current,
    /** Counts a request. Returns whether the server is killed now. */
    count(): boolean {
      if (--left > 0) return false;
      left = random.whole(...LIFE);
      const dying = current;
      current = dying.then(async (server) => {
        kills++;
        await server.stop('SIGKILL');
        return purser.serve();
      });
      return true;
    },
  };
}

const REFUSED = [
  'insufficient_funds',
  'funds_held',
  'operation_uncertain',
  'answer_lost',
  'gateway_unavailable',
  'rate_limited',
  'idempotency_in_progress',
];

test(`${REQUESTS} requests that end in every way, under kills, cost what they have to (seed ${SEED})`, async (t) => {
  const random = createRandom(SEED);
  const upstream = await openUpstream(t);
  const sent: Sent[] = [];
  const wallets: Wallet[] = [];
  obey(upstream, sent);
  const purser = installation(t, { upstream, settings: settingsFor(upstream) });
  const accountKey = await fund(purser);
  const lives = openLives(purser, random);
  let answers = 0;

  /** Asks one server. Undefined: the answer did not come, or not whole. */
  async function askOnce(server: Serving, path: string, asked: Asked): Promise<Answer | undefined> {
    const answer = await server.ask('POST', path, asked).catch(() => undefined);
    answers++;
    return answer;
  }

  /** Asks until an answer has come, in as many lives as that takes. */
  async function insist(path: string, asked: Asked): Promise<Answer> {
    for (;;) {
      const server = await lives.current();
      const answer = await askOnce(server, path, asked);
      if (answer) return answer;
      assert((await lives.current()) !== server, `the server ended by itself: ${server.output.stderr.slice(-2000)}`);
    }
  }

  async function openWallet(parent?: Wallet) {
    const cents = BigInt(parent ? random.whole(50, 500) : random.whole(5000, 10_000));
    const key = `wallet-${wallets.length}-${random.whole(0, 2 ** 31)}`;
    const about = { name: 'agent', expires_in_seconds: 0 };
    const answer = parent
      ? await insist('/v1/run/wallets', { token: parent.token, key, body: { ...about, budget_usd: usd(cents) } })
      : await insist('/v1/wallets', { token: accountKey, key, body: { ...about, budget_cents: Number(cents) } });
    assert.equal(answer.status, 201, answer.text);
    const { id, agent_token: token } = answer.body;
    const { body } = await insist('/v1/router/key', { token, body: {} });
    wallets.push({ id, token, gatewayKey: body.api_key, parent, budgetCents: cents, flying: 0, isClosing: false });
  }

  async function changeBudget(wallet: Wallet) {
    const by = random.whole(-50, 200) || 1;
    const key = `budget-${sent.length}-${random.whole(0, 2 ** 31)}`;
    const path = `/v1/wallets/${wallet.id}/budget`;
    const answer = await insist(path, { token: accountKey, key, body: { add_cents: by } });
    assert.equal(answer.status, 200, answer.text);
    wallet.budgetCents += BigInt(by);
  }

  async function close(wallet: Wallet) {
    wallet.isClosing = true;
    const path = `/v1/wallets/${wallet.id}/close`;
    wallet.closed = await until(`${wallet.id} is closed`, async () => {
      const { status, body, text } = await insist(path, { token: accountKey });
      if (status === 409 && body.error.code === 'cleanup_pending') return undefined;
      assert.equal(status, 200, text);
      return body;
    });
  }

  async function chat(wallet: Wallet) {
    const end = random.weighted(ENDS);
    const counts = { prompt: random.whole(1, 100), answer: random.whole(1, TOKENS_MAX), bytes: random.whole(2, 60) };
    const it: Sent = { n: sent.length, end, ...counts, wallet, operations: [], isInterrupted: false };
    sent.push(it);
    if (lives.count())
      for (const other of sent)
        if (!other.isWhole && answers - (other.settledAt ?? answers) < ANSWERS_AFTER) other.isInterrupted = true;
    const body = {
      model: 'chat',
      messages: [{ role: 'user', content: JSON.stringify({ n: it.n }) }],
      max_tokens: TOKENS_MAX,
      stream: !['whole', 'refused', 'lost'].includes(end),
    };
    const key = random.whole(0, 1) ? `chat-${it.n}` : undefined;
    const server = await lives.current();
    if (end.endsWith('cancelled')) return leave(server, it, body, key);
    const asked = { token: wallet.gatewayKey, body, ...(key ? { key } : {}) };
    let answer = await askOnce(server, GATEWAY, asked);
    if ((await lives.current()) !== server) {
      it.isInterrupted = true;
      if (key && !answer) answer = await insist(GATEWAY, asked).catch(() => undefined);
    }
    it.settledAt = answers;
    if (answer?.status === 200) it.isWhole = end === 'whole' || answer.text.endsWith(DONE);
    else if (answer) assert(REFUSED.includes(answer.body.error.code), `${end}: ${answer.status} ${answer.text}`);
  }

  /** Reads what the model server says, and leaves. */
  async function leave(server: Serving, it: Sent, body: object, key: string | undefined) {
    const stream = await openStream(server.url, it.wallet.gatewayKey, body, key ? { key } : {}).catch(() => undefined);
    try {
      if (stream?.status !== 200) return;
      for (let part = await stream.next(); part !== undefined; part = await stream.next())
        if (part.includes('xx')) break;
      stream.leave();
      await until('the model server is left', async () => it.isLeft);
    } catch {
      it.isInterrupted = true; // It was killed before it had said all.
    } finally {
      stream?.leave();
      it.settledAt = answers;
    }
  }

  async function anything() {
    const open = wallets.filter((it) => !it.isClosing);
    const act = random.weighted({ chat: 950, wallet: 10, child: 10, budget: 20, close: 10 });
    if (open.length < OPEN_MIN || (act === 'wallet' && open.length < OPEN_MAX)) return openWallet();
    const wallet = random.pick(open);
    const isAlone = wallet.flying === 0 && !open.some((it) => it.parent === wallet);
    if (act === 'close' && isAlone) return close(wallet);
    wallet.flying++;
    try {
      if (act === 'child' && !wallet.parent && open.length < OPEN_MAX) await openWallet(wallet);
      else if (act === 'budget' && !wallet.parent) await changeBudget(wallet);
      else await chat(wallet);
    } finally {
      wallet.flying--;
    }
  }

  let isOver = false;
  const worker = async () => {
    while (sent.length < REQUESTS && !isOver) await anything();
  };
  await Promise.all(Array.from({ length: WORKERS }, worker)).finally(() => {
    isOver = true;
  });
  for (const isChild of [true, false])
    for (const it of wallets) if (!it.closed && isChild === (it.parent !== undefined)) await close(it);
  const server = await lives.current();
  const { body: account } = await server.ask('GET', '/v1/account', { token: accountKey });
  await server.stop();

  const verdict = await purser.json('ledger', 'verify');
  assert.deepEqual(verdict.problems, []);
  const { operations } = readBooks((await purser.cli('ledger', 'export')).stdout);
  const chargeOf = (it: Booked) => sum(it.charges);
  for (const [id, it] of operations) {
    assert.deepEqual([it.holds.length, sum([...it.charges, ...it.releases])], [1, it.holds[0]], id);
    assert(it.charges.length <= 1, id);
  }
  const unseen = new Set(operations.keys());
  for (const it of sent) {
    const own = it.operations.map((id) => operations.get(id) as Booked);
    for (const id of it.operations) assert(unseen.delete(id), `the model server saw ${id} twice`);
    for (const { walletId, holds, charges } of own) {
      const [hold] = holds as [bigint];
      const cost = costOf(it, hold);
      const found = sum(charges);
      assert.equal(walletId, it.wallet.id);
      assert(
        found === cost || (it.isInterrupted && (found === hold || found === 0n)),
        `${it.n}, ${it.end}: ${found} charged of ${hold} held, where ${cost} are owed: ${JSON.stringify({ ...it, wallet: it.wallet.id })}`,
      );
    }
    const charged = own.filter((booked) => chargeOf(booked) > 0n);
    assert(charged.length <= 1, `${it.n} was charged ${charged.length} times`);
    if (it.isWhole) assert.deepEqual(charged.map(chargeOf), [costOf(it, charged[0]?.holds[0] ?? 0n)], `${it.n}`);
  }
  const interrupted = sent.filter((it) => it.isInterrupted).length;
  assert(unseen.size <= interrupted, `${unseen.size} operations that the model server never saw`);
  for (const id of unseen) {
    const it = operations.get(id) as Booked;
    assert([0n, it.holds[0]].includes(chargeOf(it)), id);
  }

  const spentBy = (wallet: Wallet): bigint =>
    sum([...operations.values()].filter((it) => it.walletId === wallet.id).map(chargeOf)) +
    sum(wallets.filter((it) => it.parent === wallet).map(spentBy));
  let spentCents = 0n;
  for (const it of wallets) {
    const used = spentBy(it);
    assert.equal(nanos(it.closed.used_usd), used, it.id);
    if (it.parent) continue;
    const cents = (used + NANOS_PER_CENT - 1n) / NANOS_PER_CENT;
    assert.equal(BigInt(it.closed.returned_cents), it.budgetCents - cents, it.id);
    spentCents += cents;
  }
  assert.deepEqual(account, {
    available_cents: CREDIT_CENTS - Number(spentCents),
    reserved_cents: 0,
    spent_cents: Number(spentCents),
    welcome_credit_cents: 0,
  });
  t.diagnostic(
    `seed ${SEED}: ${operations.size} operations, ${wallets.length} wallets, ${lives.kills()} kills; ${interrupted} requests interrupted, ${unseen.size} operations never seen`,
  );
});

const usd = (cents: bigint) => `${cents / 100n}.${String(cents % 100n).padStart(2, '0')}`;

const settingsFor = ({ url }: FakeUpstream) => ({
  router: {
    upstreams: [{ name: 'local', base_url: url, timeout_seconds: 300 }],
    models: MODELS,
    uncertain: { after_seconds: 1, policy: 'charge' },
    cancel_grace_seconds: 0,
  },
});

async function fund(purser: Installation): Promise<string> {
  await (await purser.serve()).stop();
  const [{ id }] = (await purser.json('account', 'list')).accounts;
  await purser.json('account', 'credit', id, `${CREDIT_CENTS}c`);
  return (await purser.json('key', 'create', '--account', id, '--name', 'walk')).key;
}
