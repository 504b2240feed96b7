import type { TestContext } from 'node:test';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { holdTimeouts } from '../helper/held-timeouts.ts';
import { type Answer, openTestServer, type TestServer } from '../helper/server.ts';
import { completionStream } from '../helper/sse.ts';
import { completion, type Handler } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';

// Requests that wait for money which only others in flight hold (docs/decisions/0077). The wait is over when the test says so.

export const WAIT_SECONDS = 37;
/** A token costs a cent, so that a budget of ten dollars holds 1,000 tokens. */
export const DEAR = { model: 'dear' };
/** As coding agents ask: 64,000 tokens at 15 dollars a million are 0.96 dollars. */
const LONG = {
  id: 'long',
  upstream: 'local',
  context_length: 200_000,
  max_output_tokens: 64_000,
  pricing: { prompt: '0.000003', completion: '0.000015' },
};

type Limits = Record<string, number>;

/** Opens a server whose model server answers when the test says so, and where a wait is over when `time` says so. */
export async function open(
  t: TestContext,
  {
    limits = {},
    upstream = {},
    wallet = {},
    writesHere = true,
  }: { limits?: Limits; upstream?: object; wallet?: Record<string, unknown>; writesHere?: boolean } = {},
) {
  const time = holdTimeouts(t, WAIT_SECONDS * 1000);
  const purser = await openTestServer(t, {
    writesHere,
    change: (all: any) => ({
      ...all,
      limits: { ...all.limits, funds_wait_seconds: WAIT_SECONDS, ...limits },
      router: {
        ...all.router,
        upstreams: all.router.upstreams.map((it: object) => ({ ...it, ...upstream })),
        models: [...all.router.models, LONG],
      },
    }),
  });
  const gateway = await openGateway(purser, { wallet });
  /** Answers of the model server that are held back, in the order of its calls. */
  const calls: { limit: unknown; answer: (handler?: Handler) => unknown }[] = [];
  purser.upstream.handle = (call, response) => {
    const whole = call.body.stream ? completionStream() : completion();
    calls.push({ limit: call.body.max_tokens, answer: (handler = whole) => handler(call, response) });
  };
  return { time, purser, gateway, calls };
}

/** Resolves when so many requests wait. */
export const waiting = (purser: TestServer, count: number) =>
  until(
    () => `${count} wait; there are ${purser.app.fundsQueue.count()}`,
    () => purser.app.fundsQueue.count() === count,
  );

/** Asks for so many tokens of the model `dear`. */
export const ask = (gateway: Gateway, tokens: number, more: object = {}) =>
  gateway.chat({ ...DEAR, max_tokens: tokens, ...more });

/** Has a request in flight that holds so many tokens of the model `dear`, and others that wait, in this order. */
export async function lineUp(
  { purser, gateway }: Pick<Awaited<ReturnType<typeof open>>, 'purser' | 'gateway'>,
  held: number,
  ...asked: number[]
): Promise<{ first: Promise<Answer>; others: Promise<Answer>[] }> {
  const before = purser.upstream.calls.length;
  const first = ask(gateway, held);
  await purser.upstream.arrived(before + 1);
  const others: Promise<Answer>[] = [];
  for (const tokens of asked) {
    others.push(ask(gateway, tokens, { seed: others.length }));
    await waiting(purser, others.length);
  }
  return { first, others };
}

/** Returns the status of a refusal and its code. */
export const refusalOf = ({ status, body }: Answer) => [status, body.error.code];

/** Posts with the key of the account, under an idempotency key of its own. */
export const later = (purser: TestServer, path: string, body: object) =>
  purser.ask('POST', path, { token: purser.accountKey, key: `k${Math.random()}`, body });
