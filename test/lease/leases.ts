import { randomUUID } from 'node:crypto';
import type { TestContext } from 'node:test';
import type { Backend } from '../../src/compute/backend.ts';
import { createMemory, type Memory, replaceBackend } from '../compute/engines/memory.ts';
import { type Answer, openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';

/** A small lease, and what 600 s of it cost: (0.5 × 0.04 + 0.25 × 0.005) an hour, rounded up to a nano. */
export const SPEC = { cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
export const PRICE = '0.003541667';
/** Room for every lease of a test. */
export const LONG = { budget_cents: 500, expires_in_seconds: 7200 };

export type LeaseHouse = TestServer & {
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

const settingsOf = (socket: string, image: string) => ({
  provider_one: {
    backend: 'container',
    socket,
    image,
    prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
    limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
    capacity: { cpus: 64, memory_gib: 64 }, // More than the machine has, whichever that is.
  },
  provider_three: {
    backend: 'container',
    socket,
    image,
    offers: [{ id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: '0.36' }],
  },
});

/** A house that leases containers: of `image`, by the engine behind `socket`. */
export async function openWith(
  t: TestContext,
  socket: string,
  image: string,
  options: TestServerOptions,
): Promise<LeaseHouse> {
  const { compute, ...settings } = options.settings ?? {};
  const house = await openTestServer(t, {
    ...options,
    settings: { compute: { ...settingsOf(socket, image), ...(compute as object) }, ...settings },
  });
  await house.app.reaper.stop(); // Passes run when a test says so: none looks for a machine between two of its lines.
  const create = (token: string, key: string, body: object) =>
    house.ask('POST', '/v1/compute/create', { token, key, body });
  Object.defineProperty(house, 'backend', { get: () => house.app.slots.list[0]?.backend });
  return Object.assign(house as TestServer & { backend: Backend }, {
    lease: (token: string, key: string = randomUUID(), spec: Record<string, unknown> = {}) =>
      create(token, key, { provider: 'provider_one', spec: { ...SPEC, ...spec } }),
    rent: (token: string, key: string = randomUUID()) =>
      create(token, key, {
        provider: 'provider_three',
        spec: { offer_id: 'small', disk_gb: 5, max_seconds: 600 },
      }),
    extend: (token: string, id: string, seconds: number, key: string = randomUUID()) =>
      house.ask('POST', '/v1/compute/extend', { token, key, body: { id, additional_seconds: seconds } }),
    stop: (token: string, id: string) => house.ask('POST', '/v1/compute/stop', { token, body: { id } }),
    status: async (token: string, id: string) =>
      (await house.ask('POST', '/v1/compute/status', { token, body: { id } })).body,
    closeWallet: (walletId: string) => house.ask('POST', `/v1/wallets/${walletId}/close`, { token: house.accountKey }),
    machines: async () => [] as string[],
  });
}

/** A house whose machines are only remembered, for what no real engine can be made to do. */
export async function openMemoryHouse(
  t: TestContext,
  options: TestServerOptions = {},
): Promise<LeaseHouse & { memory: Memory }> {
  const memory = createMemory();
  const house = await openWith(t, 'unix:///nowhere/docker.sock', 'nowhere:1', options);
  const { reopen, crash } = house;
  // The machines know the time that passes, whatever is done to our own clock.
  const born = house.clock.wall() - house.clock.monotonic();
  const now = () => Math.floor((born + house.clock.monotonic()) / 1000);
  const replace = async () => {
    await house.app.reaper.stop();
    for (const { backend } of house.app.slots.list) replaceBackend(backend, memory, now);
  };
  await replace();
  return Object.assign(house, {
    memory,
    machines: async () => [...memory.machines.keys()],
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
