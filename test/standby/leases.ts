import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { IMAGE, openDocker } from '../compute/engines/docker.ts';
import { type EngineProxy, openEngineProxy } from '../compute/engines/proxy.ts';
import { readBooks } from '../executable/books.ts';
import { Gone, saysDiskFailed } from '../executable/clients.ts';
import type { Installation, Serving } from '../helper/executable.ts';
import type { Answer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';

const TAG_LABEL = 'purser.tag';
const OFFER = { id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: '0.36' };
const SPEC = { offer_id: OFFER.id, disk_gb: 5, max_seconds: 600 };
const PRICE = 60_000_000n;
const BUDGET_CENTS = 100_000;
const LIVE_COUNT = 2;

type LeaseEntry = { key: string; id: string; outcome: 'unknown' | 'granted' | 'refused'; isStopped: boolean };

/** An engine that both boxes reach, behind a proxy that counts what it is asked, and a client that rents machines of it. */
export type Leases = {
  settings: Record<string, unknown>;
  proxy: EngineProxy;
  /** Rents and stops machines one after the other until the server is gone. */
  load(server: Serving): Promise<void>;
  /** Asks for what is unknown, and closes the wallet: then nothing runs any more. */
  close(server: Serving): Promise<void>;
  /** Compares the journal, the engine and the books. */
  audit(purser: Installation): Promise<void>;
  /** The wallet of the machines, which is not one of the other clients'. */
  walletId(): string;
  count(): number;
};

/** Opens them. Returns undefined on a machine without Docker: then the drill is one of chats alone. */
export async function openLeases(
  t: Parameters<typeof openDocker>[0],
  accountKey: () => string,
): Promise<Leases | undefined> {
  const engine = await openDocker(t);
  if (!engine) return undefined;
  const proxy = await openEngineProxy(t, engine);
  const wallet = { key: randomUUID(), id: '', token: '' };
  const leases: LeaseEntry[] = [];

  async function ask(server: Serving, path: string, token: string, body?: object, key?: string): Promise<Answer> {
    const answer = await server.ask('POST', path, { token, body, key }).catch((cause) => {
      throw new Gone('no answer', { cause });
    });
    if (saysDiskFailed(answer)) throw new Gone(answer.text);
    return answer;
  }

  async function openWallet(server: Serving): Promise<void> {
    const body = { name: 'machines', budget_cents: BUDGET_CENTS, expires_in_seconds: 0 };
    const answer = await ask(server, '/v1/wallets', accountKey(), body, wallet.key);
    assert.equal(answer.status, 201, answer.text);
    wallet.id = answer.body.id;
    wallet.token = answer.body.agent_token;
  }

  async function create(server: Serving, entry: LeaseEntry): Promise<void> {
    const order = { provider: 'provider_three', spec: SPEC };
    const { status, body, text } = await ask(server, '/v1/compute/create', wallet.token, order, entry.key);
    if (status === 200) {
      if (entry.id) assert.equal(body.id, entry.id, 'one key, one lease');
      entry.id = body.id;
      entry.outcome = 'granted';
    } else if (body.error?.code !== 'operation_uncertain') {
      assert(entry.outcome !== 'granted', `what was granted is gone: ${text}`);
      entry.outcome = 'refused';
    }
  }

  async function stop(server: Serving, entry: LeaseEntry): Promise<void> {
    const { status, text } = await ask(server, '/v1/compute/stop', wallet.token, { id: entry.id });
    assert([200, 409, 503].includes(status), `${entry.id} was granted, and is not known: ${status} ${text}`);
    entry.isStopped = status === 200;
  }

  async function step(server: Serving): Promise<void> {
    if (!wallet.id) await openWallet(server);
    const again = leases.find((it) => it.outcome === 'unknown');
    if (again) return create(server, again);
    const live = leases.filter((it) => it.outcome === 'granted' && !it.isStopped);
    if (live.length >= LIVE_COUNT) return stop(server, live[0] as LeaseEntry);
    const entry: LeaseEntry = { key: randomUUID(), id: '', outcome: 'unknown', isStopped: false };
    leases.push(entry);
    await create(server, entry);
  }

  const machines = async () =>
    (await engine.docker.listContainers({ all: true })).map((it) => it.Labels[TAG_LABEL]).filter((it) => it);
  return {
    settings: {
      ssh: { listen: '127.0.0.1:0' },
      compute: { provider_three: { backend: 'container', socket: proxy.socket, image: IMAGE, offers: [OFFER] } },
    },
    proxy,
    async load(server) {
      try {
        for (;;) await step(server);
      } catch (error) {
        if (!(error instanceof Gone)) throw error;
      }
    },
    async close(server) {
      if (!wallet.id) await openWallet(server);
      await until('every lease is known', async () => {
        for (const it of leases.filter(({ outcome }) => outcome === 'unknown')) await create(server, it);
        return leases.every(({ outcome }) => outcome !== 'unknown');
      });
      await until('the wallet of the machines is closed', async () => {
        const answer = await ask(server, `/v1/wallets/${wallet.id}/close`, accountKey());
        return answer.status === 200;
      });
      await until(
        () => 'every machine is gone',
        async () => (await machines()).length === 0,
      );
    },
    async audit(purser) {
      const { operations } = readBooks((await purser.cli('ledger', 'export')).stdout);
      const own = [...operations.values()].filter((it) => it.walletId === wallet.id);
      const charges = own.flatMap((it) => it.charges);
      assert(own.every((it) => it.charges.length <= 1));
      const granted = leases.filter(({ outcome }) => outcome === 'granted');
      assert.deepEqual(
        charges,
        granted.map(() => PRICE),
        'each lease that was granted is charged once',
      );
      assert.equal(new Set(granted.map(({ id }) => id)).size, granted.length, 'no two keys have one lease');
      assert.deepEqual(await machines(), []);
    },
    walletId: () => wallet.id,
    count: () => leases.length,
  };
}
