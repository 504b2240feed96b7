import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import test, { after, type TestContext } from 'node:test';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { assertNothingMoves, assertRefused } from '../http/refused.ts';
import { type Engine, IMAGE, openDocker } from './engines/docker.ts';
import { openSshd, type Sshd } from './engines/sshd.ts';

// What every schema refuses, slots or none, is in test/http/bad-input.test.ts: here machines could be made.

let engine: Engine | undefined;
after(() => engine?.stop());

const MIB = 1024 * 1024;
const ONE = { cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
const TWO = { chip: 'test-chip', max_seconds: 600 };
const THREE = { offer_id: 'small', disk_gb: 5, max_seconds: 600 };

type Scene = {
  purser: TestServer;
  sshd: Sshd;
  asked: string[];
  ids: Record<'mine' | 'long' | 'stopped' | 'theirs', string>;
  token: string;
};

/** All three slots on real backends, and leases: two of mine that run, one that was stopped, and one of somebody else. */
async function openScene(t: TestContext): Promise<Scene | undefined> {
  engine ??= await openDocker(t, { shared: true });
  const sshd = await openSshd(t);
  if (!engine || !sshd) return undefined;
  const container = { backend: 'container', socket: engine.socket, image: IMAGE };
  const prices = { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005', gpu_hourly_usd: { h100: '2.50' } };
  const offer = { id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: '0.36', count: 4 };
  const compute = {
    provider_one: { ...container, prices, limits: { cpus: 2, memory_gib: 1, gpus: 1, max_seconds: 3600 } },
    provider_two: { backend: 'ssh', hosts: [{ ...sshd.host, price_hourly_usd: '0.36' }] },
    provider_three: { ...container, offers: [offer], limits: { max_seconds: 3600 } },
  };
  const purser = await openTestServer(t, { settings: { compute } });
  await purser.app.reaper.stop();
  const rich = { budget_cents: 1000, expires_in_seconds: 7200 };
  const [{ token }, other] = [await purser.openWallet(rich), await purser.openWallet(rich)];
  const make = async (provider: string, spec: object, of = token) => {
    const made = await purser.ask('POST', '/v1/compute/create', {
      token: of,
      key: randomUUID(),
      body: { provider, spec },
    });
    assert.equal(made.status, 200, made.text);
    return made.body.id as string;
  };
  const ids = {
    mine: await make('provider_one', ONE),
    long: await make('provider_three', THREE),
    stopped: await make('provider_three', THREE),
    theirs: await make('provider_three', THREE, other.token),
  };
  await purser.ask('POST', '/v1/compute/stop', { token, body: { id: ids.stopped } });

  const asked: string[] = [];
  for (const { slot, backend } of purser.app.slots.list)
    for (const name of ['create', 'extend', 'exec', 'session', 'destroy'] as const) {
      const calls = name === 'exec' || name === 'session' ? backend.guest : backend;
      const real = Reflect.get(calls, name) as (...args: unknown[]) => Promise<unknown>;
      Object.assign(calls, {
        [name]: (...args: unknown[]) => {
          asked.push(`${slot} ${name}`);
          return real(...args);
        },
      });
    }
  return { purser, sshd, asked, ids, token };
}

type Case = readonly [what: string, verb: string, body: unknown, status: number, code: string];
const bad = (what: string, verb: string, body: unknown): Case => [what, verb, body, 400, 'invalid_request'];
const one = (change: object) => ({ provider: 'provider_one', spec: { ...ONE, ...change } });
const two = (change: object) => ({ provider: 'provider_two', spec: { ...TWO, ...change } });
const three = (change: object) => ({ provider: 'provider_three', spec: { ...THREE, ...change } });
const base64 = (bytes: number) => Buffer.alloc(bytes).toString('base64');

const CREATES: Case[] = [
  bad('an unknown provider', 'create', { provider: 'provider_four', spec: ONE }),
  bad('the spec of another provider', 'create', { provider: 'provider_two', spec: THREE }),
  bad('a spec without cpus', 'create', one({ cpus: undefined })),
  bad('a spec without a chip', 'create', two({ chip: undefined })),
  bad('a spec without a disk', 'create', three({ disk_gb: undefined })),
  bad('an extra member', 'create', one({ image: 'debian' })),
  bad('an extra member', 'create', two({ gpus: 8 })),
  bad('an extra member', 'create', three({ tag: 'x' })),
  ...[0, -1, 0.001, 2.01, 1e6, 1e300].map((it) => bad(`${it} cpus, of at most 2`, 'create', one({ cpus: it }))),
  ...[0, -0.25, 1.01, 1e9].map((it) => bad(`${it} GiB, of at most 1`, 'create', one({ memory_gib: it }))),
  ...[-1, 0.5, 2, 65, 2 ** 53].map((it) => bad(`${it} GPUs, of at most 1`, 'create', one({ gpu: 'h100', gpus: it }))),
  bad('a GPU and none of it', 'create', one({ gpu: 'h100', gpus: 0 })),
  bad('a GPU of no kind', 'create', one({ gpu: null, gpus: 1 })),
  ...[0, -5, 1.5, 6, 2 ** 53].map((it) => bad(`${it} GB of disk, of at most 5`, 'create', three({ disk_gb: it }))),
  ...[0, -60, 59, 60.5, 30 * 86_400 + 1, 2 ** 53].flatMap((it) =>
    [one, two, three].map((spec) => bad(`${it} s`, 'create', spec({ max_seconds: it }))),
  ),
  ['a GPU that is not on offer', 'create', one({ gpu: 'a100', gpus: 1 }), 404, 'offer_not_found'],
  ['a GPU with an inherited name', 'create', one({ gpu: 'constructor', gpus: 1 }), 404, 'offer_not_found'],
  ['a chip that does not exist', 'create', two({ chip: 'h100' }), 404, 'offer_not_found'],
  ['a chip with an inherited name', 'create', two({ chip: '__proto__' }), 404, 'offer_not_found'],
  ['an offer that does not exist', 'create', three({ offer_id: 'large' }), 404, 'offer_not_found'],
  ['an offer with an inherited name', 'create', three({ offer_id: 'constructor' }), 404, 'offer_not_found'],
  ['more seconds than the slot has', 'create', one({ max_seconds: 3601 }), 409, 'lease_limit_exceeded'],
  ['more seconds than the slot has', 'create', three({ max_seconds: 3601 }), 409, 'lease_limit_exceeded'],
  ['more seconds than the wallet has', 'create', two({ max_seconds: 7200 }), 409, 'lease_limit_exceeded'],
];

/** What is asked of resources; `mine`, `long`, `stopped` and `theirs` stand for their ids. */
const OTHERS: Case[] = [
  ...['stop', 'status', 'ssh', 'exec', 'upload', 'extend'].flatMap((verb): Case[] => {
    const more = { command: 'true', path: '/tmp/x', content_base64: 'eA==', ...(verb === 'extend' ? {} : { x: 1 }) };
    const body = (id: unknown) => (verb === 'extend' ? { id, additional_seconds: 60 } : { id, ...more });
    return [
      [`${verb} of somebody else's resource`, verb, body('theirs'), 404, 'not_found'],
      [`${verb} of no resource`, verb, body('res_00000000000000000000000000'), 404, 'not_found'],
      [`${verb} of what is no id`, verb, body("' or 1=1 --"), 404, 'not_found'],
      bad(`${verb} without an id`, verb, body(undefined)),
      ...(verb === 'stop' || verb === 'status'
        ? []
        : [[`${verb} of what was stopped`, verb, body('stopped'), 409, 'resource_not_active'] as const]),
    ];
  }),
  ['extending provider_one', 'extend', { id: 'mine', additional_seconds: 60 }, 409, 'extension_not_supported'],
  ['more seconds than the slot has', 'extend', { id: 'long', additional_seconds: 3001 }, 409, 'lease_limit_exceeded'],
  ...[0, -1, 0.5, 86_401, 2 ** 53].map((it) =>
    bad(`${it} more seconds`, 'extend', { id: 'long', additional_seconds: it }),
  ),
  bad('an extra member', 'extend', { id: 'long', additional_seconds: 60, force: true }),
  bad('a command with NUL', 'exec', { id: 'mine', command: 'echo a\0b' }),
  bad('no command', 'exec', { id: 'mine', command: '' }),
  ['a command of 64 KiB', 'exec', { id: 'mine', command: 'a'.repeat(65_536) }, 413, 'payload_too_large'],
  ...[0, -1, 1.5, 3601].map((it) => bad(`a timeout of ${it} s`, 'exec', { id: 'mine', command: 'true', timeout: it })),
  ...['%%%%', 'YQ=', 'YQ', 'Y Q=', 'YQ=\n', 'YQ==\t', 'YQ==YQ==', 'YQ-_'].map((it) =>
    bad(`${JSON.stringify(it)}, which is no base64`, 'upload', { id: 'mine', path: '/tmp/x', content_base64: it }),
  ),
  [
    '8 MiB + 1',
    'upload',
    { id: 'mine', path: '/tmp/x', content_base64: base64(8 * MIB + 1) },
    413,
    'payload_too_large',
  ],
  [
    'a body of more than 12 MiB',
    'upload',
    { id: 'mine', path: '/tmp/x', content_base64: base64(9 * MIB + 3) },
    413,
    'payload_too_large',
  ],
  ...[
    '',
    '../x',
    'a/../x',
    './x',
    'a/',
    '/tmp/../etc/passwd',
    '/tmp/./x',
    '/tmp/',
    '/dev/null',
    '//dev/sda',
    '/proc/1/mem',
    '/sys/x',
    '/run/purser/deadline',
    '/tmp/a\0b',
    '/tmp/a\nb',
    `/${'a'.repeat(4096)}`,
  ].map((path) =>
    bad(`the path ${JSON.stringify(path.slice(0, 30))}`, 'upload', { id: 'mine', path, content_base64: 'eA==' }),
  ),
];

test('what is wrong with a compute request is refused as documented: no money moves and nothing is started', async (t) => {
  const scene = await openScene(t);
  if (!scene) return;
  const { purser, sshd, asked, ids, token } = scene;
  const before = (await purser.ask('GET', '/v1/resources', { token: purser.accountKey })).body;
  const listed = async () => (await engine?.docker.listContainers({ all: true }))?.map((it) => it.Id).sort();
  const machines = await listed();
  await assertNothingMoves(purser, async () => {
    for (const [what, verb, body, status, code] of [...CREATES, ...OTHERS])
      await t.test(`${verb}: ${what}: ${status} ${code}`, async () => {
        const name = (body as { id?: keyof typeof ids }).id;
        const sent = name !== undefined && Object.hasOwn(ids, name) ? { ...(body as object), id: ids[name] } : body;
        const key = verb === 'create' || verb === 'extend' ? randomUUID() : undefined;
        assertRefused(await purser.ask('POST', `/v1/compute/${verb}`, { token, key, body: sent }), status, code);
        assert.deepEqual(asked, [], 'no backend was asked to do anything');
      });
    for (const verb of ['create', 'extend'])
      await t.test(`${verb} without an Idempotency-Key`, async () => {
        const body = verb === 'create' ? one({}) : { id: ids.long, additional_seconds: 60 };
        assertRefused(
          await purser.ask('POST', `/v1/compute/${verb}`, { token, body }),
          400,
          'idempotency_key_required',
        );
      });
    for (const [path, status, code] of [
      ['/v1/resources?before=nowhere', 400, 'invalid_cursor'],
      ['/v1/resources?wallet_id=wal_none', 404, 'not_found'],
      ['/v1/wallets/wal_none/resources', 404, 'not_found'],
    ] as const)
      await t.test(`GET ${path}`, async () =>
        assertRefused(await purser.ask('GET', path, { token: purser.accountKey }), status, code),
      );
  });
  assert.deepEqual(asked, []);
  assert.deepEqual((await purser.ask('GET', '/v1/resources', { token: purser.accountKey })).body, before);
  assert.deepEqual(await listed(), machines);
  assert.equal(existsSync(join(sshd.pool, 'tenant')), false);
});

test('a lease that the wallet cannot pay, or that would outlive it, is refused before anybody hears of it', async (t) => {
  const scene = await openScene(t);
  if (!scene) return;
  const { purser, asked } = scene;
  const poor = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 0 });
  const brief = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 600 });
  const create = (token: string, body: object) =>
    purser.ask('POST', '/v1/compute/create', { token, key: randomUUID(), body });
  await assertNothingMoves(purser, async () => {
    assertRefused(await create(poor.token, two({ max_seconds: 86_400 })), 402, 'insufficient_funds');
    // The time that it may take until it is ready counts too (design 2.18).
    assertRefused(await create(brief.token, three({ max_seconds: 541 })), 409, 'lease_limit_exceeded');
  });
  assert.deepEqual(asked, []);
});
