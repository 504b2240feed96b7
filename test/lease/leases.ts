import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { TestContext } from 'node:test';
import type { Backend } from '../../src/compute/backend.ts';
import type { EngineSettings } from '../../src/compute/engines/container/address.ts';
import { createMemory, type Memory, replaceBackend } from '../compute/engines/memory.ts';
import { type Answer, openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { until, waitFor } from '../helper/waiting.ts';

/** A small lease, and what 600 s of it cost: (0.5 × 0.04 + 0.25 × 0.005) an hour, rounded up to a nano. */
export const SPEC = { cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
export const PRICE = '0.003541667';
/** Room for every lease of a test. */
export const LONG = { budget_cents: 500, expires_in_seconds: 7200 };

export type LeaseServer = TestServer & {
  /** Of provider_one. */
  backend: Backend;
  /** A create of provider_one, which cannot be extended. */
  lease(token: string, key?: string, spec?: Record<string, unknown>): Promise<Answer>;
  /** A create of provider_three: 0.06 USD for 600 s. */
  rent(token: string, key?: string): Promise<Answer>;
  extend(token: string, id: string, seconds: number, key?: string): Promise<Answer>;
  stop(token: string, id: string): Promise<Answer>;
  status(token: string, id: string): Promise<Answer['body']>;
  closeWallet(walletId: string): Promise<Answer>;
  /** The names of this house's own machines. */
  machines(): Promise<string[]>;
};

const settingsOf = (engine: EngineSettings, image: string) => ({
  provider_one: {
    backend: 'container',
    ...engine,
    image,
    prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
    limits: { cpus: 2, memory_gib: 1, disk_gb: 1, max_seconds: 3600 },
    capacity: { cpus: 64, memory_gib: 64 }, // More than the machine has, whichever that is.
    snapshot_gib_day_usd: '0.10',
  },
  provider_three: {
    backend: 'container',
    ...engine,
    image,
    offers: [{ id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: '0.36' }],
  },
});

/** A purser that leases containers of `image`, by an engine or the engine behind a socket. */
export async function openWith(
  t: TestContext,
  engine: string | EngineSettings,
  image: string,
  options: TestServerOptions,
): Promise<LeaseServer> {
  const { compute, ...settings } = options.settings ?? {};
  const purser = await openTestServer(t, {
    ...options,
    settings: {
      compute: {
        ...settingsOf(typeof engine === 'string' ? { socket: engine } : engine, image),
        ...(compute as object),
      },
      ...settings,
    },
  });
  await purser.app.reaper.stop(); // Passes run when a test says so: none looks for a machine between two of its lines.
  const create = (token: string, key: string, body: object) =>
    purser.ask('POST', '/v1/compute/create', { token, key, body });
  Object.defineProperty(purser, 'backend', { get: () => purser.app.slots.list[0]?.backend });
  return Object.assign(purser as TestServer & { backend: Backend }, {
    lease: (token: string, key: string = randomUUID(), spec: Record<string, unknown> = {}) =>
      create(token, key, { provider: 'provider_one', spec: { ...SPEC, ...spec } }),
    rent: (token: string, key: string = randomUUID()) =>
      create(token, key, {
        provider: 'provider_three',
        spec: { offer_id: 'small', disk_gb: 5, max_seconds: 600 },
      }),
    extend: (token: string, id: string, seconds: number, key: string = randomUUID()) =>
      purser.ask('POST', '/v1/compute/extend', { token, key, body: { id, additional_seconds: seconds } }),
    stop: (token: string, id: string) => purser.ask('POST', '/v1/compute/stop', { token, body: { id } }),
    status: async (token: string, id: string) =>
      (await purser.ask('POST', '/v1/compute/status', { token, body: { id } })).body,
    closeWallet: (walletId: string) =>
      purser.ask('POST', `/v1/wallets/${walletId}/close`, { token: purser.accountKey }),
    machines: async () => [] as string[],
  });
}

/** A purser whose machines are only remembered, for what no real engine can be made to do. */
export async function openMemoryServer(
  t: TestContext,
  options: TestServerOptions = {},
): Promise<LeaseServer & { memory: Memory }> {
  const memory = createMemory();
  return Object.assign(await openRemembering(t, options, () => memory), { memory });
}

/** The settings of provider_one with several backends, by their names and the addresses of their engines. */
export const poolOf = (engines: Record<string, string>, image: string, more: object = {}, each: object = {}) => ({
  ...more,
  backends: Object.entries(engines).map(([name, socket]) => ({
    name,
    ...settingsOf({ socket }, image).provider_one,
    ...each,
  })),
});

/** The same with several backends behind provider_one, each with machines of its own. `more` are settings of the slot. */
export async function openMemoryPool<N extends string>(
  t: TestContext,
  names: readonly N[],
  more: object = {},
): Promise<LeaseServer & { memories: Record<N, Memory>; of: (name: N) => Backend }> {
  const memories = Object.fromEntries(names.map((it) => [it, createMemory()])) as Record<N, Memory>;
  const engines = Object.fromEntries(names.map((it) => [it, `unix:///nowhere/${it}.sock`]));
  const settings = { compute: { provider_one: poolOf(engines, 'nowhere:1', more) } };
  const other = createMemory();
  const purser = await openRemembering(t, { settings }, (name) => memories[name as N] ?? other);
  return Object.assign(purser, {
    memories,
    of: (name: N) => purser.app.slots.backendOf({ slot: 'provider_one', backend: name }) as Backend,
    machines: async () => names.flatMap((it) => [...memories[it].machines.keys()].map((ref) => `${it} ${ref}`)),
  });
}

async function openRemembering(
  t: TestContext,
  options: TestServerOptions,
  memoryOf: (backend: string) => Memory,
): Promise<LeaseServer> {
  const purser = await openWith(t, 'unix:///nowhere/docker.sock', 'nowhere:1', options);
  const { reopen, crash } = purser;
  // The machines know the time that passes, whatever is done to our own clock.
  const born = purser.clock.wall() - purser.clock.monotonic();
  const now = () => Math.floor((born + purser.clock.monotonic()) / 1000);
  const replace = async () => {
    await purser.app.reaper.stop();
    for (const { backend } of purser.app.slots.list) replaceBackend(backend, memoryOf(backend.name), now);
  };
  await replace();
  return Object.assign(purser, {
    machines: async () => [
      ...new Set(purser.app.slots.list.flatMap((it) => [...memoryOf(it.backend.name).machines.keys()])),
    ],
    async reopen(...args: Parameters<TestServer['reopen']>) {
      await reopen(...args);
      await replace();
    },
    async crash(...args: Parameters<TestServer['crash']>) {
      await crash(...args);
      await replace();
    },
  });
}

/** A call that waits for a test's word, and tells when it has come. */
export function hold(): { arrived: Promise<void>; wait: () => Promise<void>; go: () => void } {
  const arrived = Promise.withResolvers<void>();
  const gone = Promise.withResolvers<void>();
  return {
    arrived: arrived.promise,
    wait() {
      arrived.resolve();
      return gone.promise;
    },
    go: gone.resolve,
  };
}

/**
 * Rents with the key `k` and stops again, and has the process die at a call of the backend: before it is made, or when it
 * was made and nobody heard of it. A server on the same files has taken its place afterwards.
 */
export async function dieAt(
  purser: LeaseServer,
  token: string,
  when: 'before' | 'after',
  name: 'create' | 'inspect' | 'extend' | 'destroy' | 'find' | 'identity',
): Promise<void> {
  const { create } = purser.backend;
  if (name === 'find')
    // The tag is asked only where an answer was lost.
    purser.backend.create = async (order) => {
      await create(order);
      throw new Error('the connection was reset');
    };
  const died = Promise.withResolvers<void>();
  const never = Promise.withResolvers<never>();
  const real = purser.backend[name] as (...args: never[]) => Promise<unknown>;
  (purser.backend as Record<string, unknown>)[name] = async (...args: never[]) => {
    if (when === 'after') await real(...args);
    died.resolve();
    return never.promise;
  };
  const life = async () => {
    let made = await purser.lease(token, 'k');
    if (made.status === 503) made = await purser.lease(token, 'k');
    await purser.stop(token, made.body.id);
  };
  const lived = life().then(() => assert.fail(`it lived on, and came to no ${name}`));
  lived.catch(() => {}); // What the dead life still says is heard by nobody.
  await waitFor(`it dies ${when} ${name}`, Promise.race([died.promise, lived]));
  await purser.crash(() => never.reject(new Error('it is dead')));
}

/** The refusals of a create that an engine did not carry out in time. */
const LATE = ['operation_uncertain', 'provider_unavailable'];

/**
 * Leases a machine for each of the tokens, all at once, and returns their ids once all run. A create is answered in 30 s at the
 * latest, which on a busy machine is not enough for all of them: it is asked for again by its key. `between` is done in between.
 */
export function leaseAtOnce(
  purser: LeaseServer,
  tokens: readonly string[],
  between: () => Promise<unknown> = async () => {},
): Promise<string[]> {
  return until('all are running', async () => {
    const made = await Promise.all(tokens.map((token, i) => purser.lease(token, `at-once-${i}`)));
    for (const { status, body, text } of made) assert.ok(status === 200 || LATE.includes(body.error.code), text); // Any other refusal is a fault.
    await between();
    const ids = made.map(({ body }) => body.id as string);
    const now = await Promise.all(tokens.map((token, i) => purser.status(token, ids[i] as string)));
    return now.every(({ status }) => status === 'running') && ids;
  });
}
