import type { TestContext } from 'node:test';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { type FakeUpstream, openUpstream } from '../helper/upstream.ts';

export const PRICE = { prompt: '0.000001', completion: '0.000002' };
export const LIMITS = { context_length: 32768, max_output_tokens: 1000 };

export type Pool = { purser: TestServer; a: FakeUpstream; b: FakeUpstream; c: FakeUpstream };

/** Three servers of one model, `pool`. `model` changes its settings, `upstream` those of the servers. */
export async function openPool(
  t: TestContext,
  model: object = {},
  upstream: object = {},
  options: object = {},
): Promise<Pool> {
  const [a, b, c] = [await openUpstream(t), await openUpstream(t), await openUpstream(t)];
  const upstreams = Object.entries({ a, b, c }).map(([name, { url }]) => ({ name, base_url: url, ...upstream }));
  const purser = await openTestServer(t, {
    ...options,
    change: (all) => ({
      ...all,
      router: {
        ...all.router,
        upstreams,
        models: [{ id: 'pool', ...LIMITS, upstreams: ['a', 'b', 'c'], pricing: PRICE, ...model }],
      },
    }),
  });
  return { purser, a, b, c };
}

export const countsOf = ({ a, b, c }: Pool) => [a, b, c].map(({ calls }) => calls.length);
export const total = (pool: Pool) => countsOf(pool).reduce((sum, it) => sum + it, 0);
/** Returns the servers that were asked since `before`, by their positions. */
export const askedSince = (pool: Pool, before: number[]) =>
  countsOf(pool).flatMap((count, i) => (count > (before[i] as number) ? [i] : []));

/**
 * Names of conversations. At which server each is at home follows from its wallet, whose id is another in each run: of so many, some
 * are at home at each of three servers (all but one of 10^6 times).
 */
export const MANY = Array.from({ length: 40 }, (_, i) => `n${i}`);

export const turnsOf = (name: string, turns: number) => [
  { role: 'system', content: `You are ${name}.` },
  ...Array.from({ length: turns }, (_, i) => [
    { role: 'user', content: `${name} asks ${i} ${'at some length '.repeat(20)}` },
    ...(i < turns - 1 ? [{ role: 'assistant', content: 'hello' }] : []),
  ]).flat(),
];
