import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { channel } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after, before, type TestContext } from 'node:test';
import { inspect } from 'node:util';
import { Secret } from '../../src/base/secret.ts';
import { type Backend, type Created, tagOf, tagPrefix } from '../../src/compute/backend.ts';
import type { Spacing } from '../../src/compute/engines/vast/api.ts';
import type { VastSettings } from '../../src/compute/engines/vast/settings.ts';
import { openVastBackend } from '../../src/compute/engines/vast/vast.ts';
import { printable, readConfig } from '../../src/config/config.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { conform, type Subject } from './conformance.ts';
import { type FakeVast, openFakeVast, VAST_KEY } from './engines/fake-vast.ts';

/** Quick enough for tests; one test keeps to Vast's own spacing. */
const QUICK: Spacing = { search: 1, create: 1, show: 20, list: 5, attach: 1, destroy: 5, account: 1 };
const INSTALLATION = `inst_${randomBytes(13).toString('hex')}`;
const freshTag = () => tagOf(INSTALLATION, `res_${randomBytes(13).toString('hex')}`);
const now = () => Math.floor(Date.now() / 1000);
const settingsOf = (url: string, over: Partial<VastSettings> = {}): VastSettings => ({
  backend: 'vast',
  api_key: new Secret(VAST_KEY),
  base_url: url,
  markup_percent: 0,
  image: 'busybox',
  runtype: 'ssh_direct',
  provision_seconds: 900,
  ...over,
});

let leases: string;
let shared: FakeVast | undefined;
before(() => {
  leases = mkdtempSync(join(tmpdir(), 'purser-leases-'));
});
after(async () => {
  await shared?.close();
  rmSync(leases, { recursive: true, force: true });
});

conform('vast', async (t): Promise<Subject | undefined> => {
  shared ??= await openFakeVast(t, { shared: true });
  if (!shared) return undefined;
  const backend = openVastBackend(settingsOf(shared.url), { leases, now, spacing: QUICK });
  t.after(() => backend.close());
  const spec = { offer_id: String(shared.offer()), disk_gb: 16, max_seconds: 600 };
  return {
    backend,
    spec,
    unknownSpec: { ...spec, offer_id: '999999999' },
    room: 1,
    extends: true,
    deadlineMinSeconds: 3,
    losesLine: true,
  };
});

type Bench = {
  vast: FakeVast;
  backend: Backend;
  clock: { ahead: number };
  buy(over?: { offer?: number; tag?: string }): Promise<Created>;
};

/** A fake Vast of its own and a backend on it. */
async function openBench(
  t: TestContext,
  over: Partial<VastSettings> = {},
  spacing = QUICK,
): Promise<Bench | undefined> {
  const vast = await openFakeVast(t);
  if (!vast) return undefined;
  const clock = { ahead: 0 };
  const backend = openVastBackend(settingsOf(vast.url, over), {
    leases,
    now: () => now() + clock.ahead,
    spacing,
  });
  t.after(() => backend.close());
  return {
    vast,
    backend,
    clock,
    async buy({ offer = vast.offer(), tag = freshTag() } = {}) {
      const quote = await backend.quote({ offer_id: String(offer), disk_gb: 16, max_seconds: 600 });
      return backend.create({ tag, quote, deadline: now() + 600 });
    },
  };
}
const refOf = (created: Created) => {
  assert.equal(created.kind, 'created', JSON.stringify(created));
  return (created as { ref: string }).ref;
};

test('what is sent to Vast: the label, the switch, and the account key in the header alone', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast } = bench;
  const tag = freshTag();
  refOf(await bench.buy({ tag }));
  const [create] = vast.calls.filter((it) => it.endpoint === 'create');
  const { onstart, ...body } = create?.body ?? {};
  assert.deepEqual(body, {
    client_id: 'me',
    image: 'busybox',
    disk: 16,
    label: tag,
    runtype: 'ssh_direct',
    env: { '-p 22:22': '1' },
    cancel_unavail: true,
    target_state: 'running',
  });
  assert.match(onstart, /deadline/);
  for (const { path, query, body: sent, headers } of vast.calls) {
    assert.equal(headers.authorization, `Bearer ${VAST_KEY}`);
    assert.ok(!`${path}?${query} ${JSON.stringify(sent)}`.includes(VAST_KEY), 'the account key is nowhere else');
  }
  for (const name of readdirSync(leases)) assert.ok(!readFileSync(join(leases, name), 'utf8').includes(VAST_KEY));
});

test('a price is exact: the digits that were sent, with the markup, rounded up once', async (t) => {
  const bench = await openBench(t, { markup_percent: 7.25 });
  if (!bench) return;
  const { vast, backend } = bench;
  for (const [dph, nanos] of [
    ['0.1', 107_250_000n],
    ['0.3512345678901', 376_699_075n], // 0.3512345678901 × 1.0725 = 0.37669907406213…
    ['1.2e-05', 12_870n],
    ['2', 2_145_000_000n],
  ] as const) {
    const quote = await backend.quote({ offer_id: String(vast.offer({ dph })), disk_gb: 16, max_seconds: 600 });
    assert.equal(quote.priceHourly, nanos, dph);
  }
  for (const dph of ['-1', '0', 'null', '"free"', '1e30']) {
    const spec = { offer_id: String(vast.offer({ dph })), disk_gb: 16, max_seconds: 600 };
    await assert.rejects(backend.quote(spec), { code: 'offer_not_found' }, dph);
  }
});

test('a quote names the end of the contract, and refuses a disk that cannot be had', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  const ends = now() + 5000;
  const offer = String(vast.offer({ ends, disk_space: 50 }));
  const quote = await backend.quote({ offer_id: offer, disk_gb: 16, max_seconds: 600 });
  assert.ok(Math.abs((quote.endsBy ?? 0) - ends) <= 1);
  assert.ok(quote.maxSeconds <= 5000 && quote.maxSeconds >= 4998);
  for (const disk of [1, 7, 51])
    await assert.rejects(backend.quote({ offer_id: offer, disk_gb: disk, max_seconds: 600 }), {
      code: 'invalid_request',
    });
  await assert.rejects(backend.quote({ offer_id: 'not-a-number', disk_gb: 16, max_seconds: 600 }), {
    code: 'offer_not_found',
  });
});

test('only a clear no is a refusal; everything else is unknown', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast } = bench;
  const cases: [number, string, Created['kind'], string?][] = [
    [400, '{"success":false,"error":"invalid_args"}', 'refused', 'provider_unavailable'],
    [401, '{"error":"auth_error"}', 'refused', 'provider_unavailable'],
    [403, 'forbidden', 'refused', 'provider_unavailable'],
    [404, '{"success":false,"error":"no_such_ask"}', 'refused', 'capacity_unavailable'],
    [410, '{"success":false,"error":"no_such_ask"}', 'refused', 'capacity_unavailable'],
    [422, '{}', 'refused', 'provider_unavailable'],
    [404, '<html>not here</html>', 'unknown'],
    [429, 'API requests too frequent', 'unknown'],
    [500, '{"error":"oops"}', 'unknown'],
    [502, 'bad gateway', 'unknown'],
    [503, '', 'unknown'],
    [200, '{"success":false,"error":"whatever"}', 'unknown'],
  ];
  for (const [status, body, kind, code] of cases) {
    vast.faults.createSays = [[status, body]];
    const made = await bench.buy();
    assert.deepEqual(
      [made.kind, 'code' in made ? made.code : undefined],
      [kind, code],
      `${status} ${body}: ${JSON.stringify(made)}`,
    );
  }
  assert.equal(vast.count('create'), cases.length, 'no create is repeated');
  const { url } = vast;
  await vast.close();
  const quote = { spec: { offer_id: '1', disk_gb: 16, max_seconds: 600 }, priceHourly: 1n, maxSeconds: 600 };
  const refused = await bench.backend.create({ tag: freshTag(), quote, deadline: now() + 60 });
  assert.equal(refused.kind, 'refused', `nothing listens at ${url}: ${JSON.stringify(refused)}`);
});

for (const then of ['500', 'reset', 'garbage', 'no-contract'] as const) {
  test(`a create that is answered with ${then} is unknown, is sent once, and is found by its label`, async (t) => {
    const bench = await openBench(t);
    if (!bench) return;
    const { vast, backend } = bench;
    vast.faults.createThen = [then];
    const tag = freshTag();
    assert.equal((await bench.buy({ tag })).kind, 'unknown');
    assert.equal(vast.count('create'), 1);
    assert.deepEqual(
      (await backend.find(tag)).map((it) => it.ref),
      [...vast.instances.keys()].map(String),
    );
  });
}

test('a create is refused only where not a byte of it was sent, whatever the error is called', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast } = bench;
  // Linux reports EHOSTUNREACH on an established connection too, once the peer has gone.
  const sending = channel('undici:client:sendHeaders');
  const lose = (message: unknown) => {
    const { request, socket } = message as { request: { method: string }; socket: Socket };
    if (request.method !== 'PUT') return;
    setImmediate(() => socket.destroy(Object.assign(new Error('lost'), { code: 'EHOSTUNREACH' })));
  };
  sending.subscribe(lose);
  t.after(() => sending.unsubscribe(lose));
  vast.faults.createThen = ['hang'];
  const made = await bench.buy();
  assert.equal(made.kind, 'unknown', JSON.stringify(made));
  assert.match((made as { reason: string }).reason, /EHOSTUNREACH/);

  // A connection that breaks during the TLS handshake says ECONNRESET, before anything was sent.
  const deaf = createServer((socket) => socket.once('data', () => socket.resetAndDestroy()));
  deaf.listen(0, '127.0.0.1');
  await once(deaf, 'listening');
  t.after(() => deaf.close());
  const { port } = deaf.address() as AddressInfo;
  const other = openVastBackend(settingsOf(`https://127.0.0.1:${port}`), { leases, now, spacing: QUICK });
  t.after(() => other.close());
  const quote = { spec: { offer_id: '1', disk_gb: 16, max_seconds: 600 }, priceHourly: 1n, maxSeconds: 600 };
  const refused = await other.create({ tag: freshTag(), quote, deadline: now() + 60 });
  assert.equal(refused.kind, 'refused', JSON.stringify(refused));
});

test('a contract that comes with an error is kept hold of, and has ended', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  vast.faults.createThen = ['error-with-contract'];
  const ref = refOf(await bench.buy());
  assert.equal((await backend.inspect(ref))?.state, 'ended');
  await backend.destroy(ref);
  assert.equal(await backend.inspect(ref), undefined);
  assert.equal(vast.instances.size, 0);
});

test('two creates of one offer at once: the second is refused before anything is sent', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  const spec = { offer_id: String(vast.offer()), disk_gb: 16, max_seconds: 600 };
  const quote = await backend.quote(spec);
  vast.faults.sellTwice = true;
  const [a, b] = await Promise.all([1, 2].map(() => backend.create({ tag: freshTag(), quote, deadline: now() + 600 })));
  assert.deepEqual([a?.kind, b?.kind, b?.kind === 'refused' && b.code], ['created', 'refused', 'capacity_unavailable']);
  assert.equal(vast.count('create'), 1);
});

test('an offer that Vast sold twice: the loser’s machine never runs, and has ended', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  vast.faults.sellTwice = true;
  const spec = { offer_id: String(vast.offer()), disk_gb: 16, max_seconds: 600 };
  const quote = await backend.quote(spec);
  refOf(await backend.create({ tag: freshTag(), quote, deadline: now() + 600 }));
  const loser = refOf(await backend.create({ tag: freshTag(), quote, deadline: now() + 600 }));
  assert.equal((await backend.inspect(loser))?.state, 'ended');
});

test('what has just been made and is in no list yet is provisioning; what was seen once and is gone is gone', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend, clock } = bench;
  Object.assign(vast.faults, { notYet: 2, listLagMilliseconds: 600_000 });
  const ref = refOf(await bench.buy());
  assert.deepEqual((await backend.inspect(ref))?.state, 'provisioning', 'a 404 right after the create proves nothing');
  await backend.destroy(ref); // So does this one.
  assert.ok(await backend.inspect(ref), 'and so it is not called gone');
  await backend.destroy(ref);
  assert.equal(await backend.inspect(ref), undefined);
  assert.equal(vast.instances.size, 0);

  vast.faults.notYet = 1000;
  const never = refOf(await bench.buy());
  assert.ok(await backend.inspect(never));
  clock.ahead = 61;
  assert.equal(await backend.inspect(never), undefined, 'after a while an absence is believed');
});

test('a single look that finds nothing is not believed while the list knows better', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  const ref = refOf(await bench.buy());
  await until('it runs', async () => (await backend.inspect(ref))?.state === 'running');
  (vast.instances.get(Number(ref)) as { notYet: number }).notYet = 1;
  assert.equal((await backend.inspect(ref))?.state, 'running');
});

test('states as Vast names them', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  const cases: [Record<string, unknown>, string][] = [
    [{ actual_status: null }, 'provisioning'],
    [{ actual_status: 'created' }, 'provisioning'],
    [{ actual_status: 'loading' }, 'provisioning'],
    [{ actual_status: 'running' }, 'provisioning'], // Nobody can log in.
    [{ actual_status: 'offline' }, 'provisioning'],
    [{ actual_status: 'unknown' }, 'provisioning'],
    [{ actual_status: 'exited' }, 'ended'],
    [{ actual_status: 'stopped' }, 'ended'],
    [{ actual_status: 'created', status_msg: 'Error: OCI runtime create failed: no gpu' }, 'ended'],
    [{ actual_status: null, cur_state: 'stopped', intended_status: 'stopped', next_state: 'stopped' }, 'ended'],
  ];
  for (const [row, state] of cases)
    assert.equal((await backend.inspect(String(vast.plant(freshTag(), row))))?.state, state, JSON.stringify(row));
});

test('lists are read to their end, and a partial one is no list', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  for (let i = 0; i < 60; i++) vast.plant(freshTag());
  vast.plant('somebody else’s');
  vast.plant(tagOf('inst_other', 'res_1'));
  assert.equal((await backend.listOwned(tagPrefix(INSTALLATION))).length, 60);
  assert.equal(vast.count('list'), 3);
  vast.faults.brokenPages = true;
  await assert.rejects(backend.listOwned(tagPrefix(INSTALLATION)), /no list of instances: 500/);
  vast.faults.brokenPages = false;
  vast.faults.shortList = true;
  await assert.rejects(backend.listOwned(tagPrefix(INSTALLATION)), /partial/);
});

test('a 429 in plain text: reads wait it out, a destroy is left to the caller', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  const ref = String(vast.plant(freshTag()));
  vast.faults.tooOften = { show: 2, list: 2, search: 1, destroy: 1 };
  assert.equal((await backend.inspect(ref))?.state, 'provisioning');
  assert.equal((await backend.listOwned(tagPrefix(INSTALLATION))).length, 1);
  assert.deepEqual(await backend.offers(), []);
  await assert.rejects(backend.destroy(ref), /429 API requests too frequent/);
  await backend.destroy(ref);
  vast.faults.tooOften = { show: 100 };
  await assert.rejects(backend.inspect(ref), /429/);
});

test('calls of one endpoint keep their distance', async (t) => {
  const bench = await openBench(t, {}, { ...QUICK, list: 60, create: 60 });
  if (!bench) return;
  const { vast, backend } = bench;
  vast.faults.spacing = { create: 55 };
  vast.faults.stuck = { actual_status: 'loading' };
  const started = performance.now();
  const made = await Promise.all([1, 2, 3, 4].map(() => bench.buy()));
  assert.deepEqual(
    made.map((it) => it.kind),
    ['created', 'created', 'created', 'created'],
    'none came too early',
  );
  await Promise.all([1, 2, 3, 4].map(() => backend.find(freshTag())));
  assert.ok(performance.now() - started >= 6 * 60);
  assert.equal(vast.count('list'), 4);
});

test('many machines that are looked at together cost few calls', async (t) => {
  const bench = await openBench(t, {}, { ...QUICK, show: 300 });
  if (!bench) return;
  const { vast, backend } = bench;
  const tags = Array.from({ length: 40 }, freshTag);
  const refs = tags.map((tag) => String(vast.plant(tag)));
  for (const tag of tags) await backend.find(tag);
  vast.calls.length = 0;
  const inspected = await Promise.all(refs.map((ref) => backend.inspect(ref)));
  assert.deepEqual(
    inspected.map((it) => it?.ref),
    refs,
  );
  assert.deepEqual([vast.count('show'), vast.count('list')], [1, 2]);
});

test('destroying: gone is done, and a failure is said', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  const ref = String(vast.plant(freshTag()));
  for (const says of [
    [500, 'oops'],
    [200, '{"success":false,"error":"busy"}'],
    [200, 'garbage'],
  ] as [number, string][]) {
    vast.faults.destroySays = [says];
    await assert.rejects(backend.destroy(ref), /was not destroyed/);
  }
  vast.faults.destroySays = [[400, '{"success":false,"error":"no_such_instance"}']];
  await backend.destroy(ref);
  await backend.destroy(ref);
  await backend.destroy(ref);
  assert.equal(vast.instances.size, 0);
});

test('an extension never passes the end of the contract, nor goes to a machine that cannot be reached', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  const ref = refOf(await bench.buy({ offer: vast.offer({ ends: now() + 5000 }) }));
  await until('it runs', async () => (await backend.inspect(ref))?.state === 'running');
  assert.match(((await backend.extend(ref, now() + 6000)) as { reason: string }).reason, /contract ends/);
  assert.equal((await backend.extend(ref, now() + 4000)).kind, 'done');
  const far = String(vast.plant(freshTag(), { actual_status: 'running' }));
  assert.equal((await backend.extend(far, now() + 100)).kind, 'refused');
});

test('an extension whose line dies in the middle is unknown, and then the machine itself says what its deadline is', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  const ref = refOf(await bench.buy());
  await until('it runs', async () => (await backend.inspect(ref))?.state === 'running');
  const instance = vast.instances.get(Number(ref));
  assert.ok(instance);
  const deadline = now() + 4000;
  instance.cutsLines = true;
  assert.equal((await backend.extend(ref, deadline)).kind, 'unknown');
  assert.equal((await backend.inspect(ref))?.deadline, undefined, 'nobody knows');
  instance.cutsLines = false;
  assert.equal((await backend.inspect(ref))?.deadline, deadline);
});

test('while a machine is told its new deadline, no record claims to know it: this process may die there', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { backend } = bench;
  const ref = refOf(await bench.buy());
  await until('it runs', async () => (await backend.inspect(ref))?.state === 'running');
  const known = () => JSON.parse(readFileSync(join(leases, `vast-${ref}.json`), 'utf8')).deadline as number | undefined;
  const before = known();
  const seen = new Set<number | undefined>();
  const deadline = now() + 4000;
  let isOver = false;
  const extended = backend.extend(ref, deadline).finally(() => {
    isOver = true;
  });
  while (!isOver) {
    seen.add(known());
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.equal((await extended).kind, 'done');
  assert.equal(typeof before, 'number');
  assert(seen.has(undefined), [...seen].join(', '));
  assert.equal(known(), deadline);
});

test('a machine that shows another host key than before is not talked to', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  const one = refOf(await bench.buy());
  const two = refOf(await bench.buy());
  for (const ref of [one, two]) await until('it runs', async () => (await backend.inspect(ref))?.state === 'running');
  const [a, b] = [one, two].map((ref) => vast.instances.get(Number(ref)));
  Object.assign(a as object, { port: b?.port }); // Somebody else answers where the machine was.
  b?.keys.push(...(a?.keys ?? []));
  await backend.inspect(one);
  await assert.rejects(backend.guest.exec(one, { command: 'true', timeoutSeconds: 5, streamBytesMax: 10 }), /host/i);
});

test('another process of ours finds the machine again: its key, its host key and its deadline', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  const ref = refOf(await bench.buy());
  await until('it runs', async () => (await backend.inspect(ref))?.state === 'running');
  const deadline = now() + 900;
  await backend.extend(ref, deadline);
  const order = { command: 'echo hi', timeoutSeconds: 5, streamBytesMax: 10 };
  for (const directory of [leases, mkdtempSync(join(leases, 'another-'))]) {
    const next = openVastBackend(settingsOf(vast.url), { leases: directory, now, spacing: QUICK });
    const machine = await next.inspect(ref);
    assert.deepEqual([machine?.state, machine?.deadline], ['running', deadline]);
    assert.equal((await next.guest.exec(ref, order)).stdout.toString(), 'hi\n');
    await next.close();
  }
  assert.equal(vast.count('attach'), 2, 'only where the record was lost another key is given');
});

test('a provider that does not answer in time is waited for no longer, and what a create then made is found', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast } = bench;
  const quote = await bench.backend.quote({ offer_id: String(vast.offer()), disk_gb: 16, max_seconds: 600 });
  const patience = { create: 150, other: 150 };
  const hasty = openVastBackend(settingsOf(vast.url), { leases, now, spacing: QUICK, timeLimits: patience });
  t.after(() => hasty.close());
  vast.faults.createThen = ['hang'];
  const tag = freshTag();
  const made = await hasty.create({ tag, quote, deadline: now() + 600 });
  assert.match(JSON.stringify(made), /"unknown".*no answer within 0.15 s/);
  assert.equal((await bench.backend.find(tag)).length, 1);
  vast.faults.slow = 400;
  const [ref] = [...vast.instances.keys()].map(String);
  await assert.rejects(hasty.inspect(ref as string), /no answer within/);
  await assert.rejects(hasty.destroy(ref as string), /no answer within/);
  assert.ok(await bench.backend.inspect(ref as string).then(() => true), 'who has time gets an answer');
});

test('the account key is in no message, whatever Vast says', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  vast.faults.createSays = [[500, `you are Bearer ${VAST_KEY} and ${VAST_KEY}`]];
  const made = await bench.buy();
  assert.equal(made.kind, 'unknown');
  assert.ok(!JSON.stringify(made).includes(VAST_KEY), JSON.stringify(made));
  await backend.close();
  await assert.rejects(backend.find(freshTag()));
});

test('a check says what the account can do, and buys nothing', async (t) => {
  const bench = await openBench(t);
  if (!bench) return;
  const { vast, backend } = bench;
  vast.offer();
  const check = async (it = backend) => (await it.doctor?.check()) ?? [];
  assert.deepEqual(await check(), [
    { name: 'key', ok: true, detail: 'Vast accepts it' },
    { name: 'credit', ok: true, detail: 'USD 12.50' },
    { name: 'labels', ok: true, detail: 'instances can be listed by their label' },
    { name: 'offers', ok: true, detail: '1 on offer' },
  ]);
  const hear = async (at: number, what: RegExp, it = backend) => {
    const found = (await check(it))[at];
    assert.equal(found?.ok, false, JSON.stringify(found));
    assert.match(found?.detail ?? '', what);
    assert.ok(!JSON.stringify(found).includes(VAST_KEY));
  };
  const other = (key: string, patience = { create: 5000, other: 150 }) => {
    const it = openVastBackend(settingsOf(vast.url, { api_key: new Secret(key) }), {
      leases,
      now,
      spacing: QUICK,
      timeLimits: patience,
    });
    t.after(() => it.close());
    return it;
  };
  await hear(0, /^401 .*Vast refuses the key\. Set compute\.provider_three\.api_key/, other('another-key'));
  vast.faults.tooOften = { account: 9 };
  await hear(0, /^429 API requests too frequent.*asked too often\. Wait a minute/);
  vast.faults.tooOften = { list: 9 };
  await hear(2, /429 API requests too frequent.*asked too often/);
  vast.faults.tooOften = {};
  vast.faults.account = { credit: 0, balance: -1.25 };
  await hear(1, /^USD -1\.25: Vast refuses rentals.*Add credit/);
  vast.faults.account = {};
  assert.match((await check())[1]?.detail ?? '', /does not tell it/);
  vast.faults.slow = 400;
  await hear(0, /no answer within 0\.15 s\. Check base_url/, other(VAST_KEY));
  assert.equal(vast.count('create'), 0);
});

// Through the whole purser.

type VastServer = TestServer & {
  vast: FakeVast;
  offer: number;
  lease(token: string, key?: string, spec?: object): ReturnType<TestServer['ask']>;
};
const LONG = { budget_cents: 500, expires_in_seconds: 7200 };

async function openVastServer(t: TestContext): Promise<VastServer | undefined> {
  const vast = await openFakeVast(t);
  if (!vast) return undefined;
  // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration reads it from the environment.
  const api_key = '${VAST_API_KEY}';
  const provider_three = { backend: 'vast', api_key, base_url: vast.url, image: 'busybox' };
  const purser = await openTestServer(t, {
    settings: { compute: { provider_three } },
    env: { VAST_API_KEY: VAST_KEY },
  });
  await purser.app.reaper.stop(); // Passes run when a test says so: none looks for a machine between two of its lines.
  const offer = vast.offer();
  // The configured backend keeps to Vast's spacing: here it is asked more quickly.
  const [slot] = purser.app.slots.list;
  const quick = openVastBackend(settingsOf(vast.url), {
    leases: join(purser.directory, 'leases'),
    now: () => purser.app.clock.now(),
    spacing: QUICK,
  });
  t.after(() => quick.close());
  Object.assign(slot?.backend as Backend, quick);
  return Object.assign(purser, {
    vast,
    offer,
    lease: (token: string, key = randomUUID(), spec: object = {}) =>
      purser.ask('POST', '/v1/compute/create', {
        token,
        key,
        body: { provider: 'provider_three', spec: { offer_id: String(offer), disk_gb: 16, max_seconds: 600, ...spec } },
      }),
  });
}
const PRICE = '0.06';

test('the settings of vast: defaults, no secret in what is printed, and every fault named', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-test-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const read = (settings: string) => {
    writeFileSync(join(directory, 'purser.yaml'), `compute:\n  provider_three: ${settings}\n`);
    return readConfig({ data: directory }, { VAST_API_KEY: VAST_KEY });
  };
  // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration reads it from the environment.
  const config = read('{ backend: vast, api_key: "${VAST_API_KEY}" }');
  const { image, api_key: key, ...rest } = config.compute.provider_three as VastSettings;
  assert.match(image, /:/);
  assert.deepEqual(rest, {
    backend: 'vast',
    base_url: 'https://console.vast.ai',
    markup_percent: 0,
    runtype: 'ssh_direct',
    provision_seconds: 900,
  });
  assert.equal(key.reveal(), VAST_KEY);
  assert.ok(!JSON.stringify(printable(config)).includes(VAST_KEY));
  for (const [settings, fault] of [
    ['{ backend: vast }', /api_key: is required/],
    ['{ backend: vast, api_key: canary-0123, markup_percent: 0.123 }', /markup_percent: has more than two decimals/],
    ['{ backend: vast, api_key: canary-0123, base_url: "ftp://x" }', /base_url: not an http/],
    ['{ backend: vast, api_key: canary-0123, offers: [] }', /offers: unknown setting/],
    ['{ backend: fast, api_key: canary-0123 }', /backend/],
  ] as const)
    assert.throws(
      () => read(settings),
      (error: Error) => fault.test(error.message) && !error.message.includes('canary'),
      settings,
    );
});

test('a whole lease at Vast, from its offer to the destroyed rental', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { offers } = (await purser.ask('GET', '/v1/compute/offers', { token })).body;
  assert.deepEqual(
    offers.map((it: any) => [it.provider, it.offer_id, it.price_hourly_usd, it.supports_extension]),
    [['provider_three', String(purser.offer), '0.36', true]],
  );
  const made = await purser.lease(token, 'k');
  assert.deepEqual([made.status, made.body.status, made.body.charged_usd], [200, 'running', PRICE], made.text);
  const { id } = made.body;
  const said = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'echo hi; exit 3' } });
  assert.deepEqual([said.body.exit_code, said.body.stdout], [3, 'hi\n'], said.text);
  const extended = await purser.ask('POST', '/v1/compute/extend', {
    token,
    key: 'e',
    body: { id, additional_seconds: 300 },
  });
  assert.deepEqual([extended.status, extended.body.expires_at - made.body.expires_at], [200, 300], extended.text);
  const stopped = await purser.ask('POST', '/v1/compute/stop', { token, body: { id } });
  assert.deepEqual([stopped.body.status, stopped.body.charged_usd], ['stopped', '0.09'], stopped.text);
  assert.equal(purser.vast.instances.size, 0);
  assert.deepEqual(purser.problems(), []);
  assert.ok(!purser.log.join('').includes(VAST_KEY) && !inspect(purser.app.config, { depth: 9 }).includes(VAST_KEY));
});

test('an offer that is gone is a 404, and a provider that is down a 503, with nothing held', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  assert.equal((await purser.lease(token, 'k', { offer_id: '999' })).body.error.code, 'offer_not_found');
  purser.vast.faults.createSays = [[404, '{"error":"no_such_ask"}']];
  assert.equal((await purser.lease(token, 'k')).body.error.code, 'capacity_unavailable');
  await purser.vast.close();
  const down = await purser.lease(token, 'k');
  assert.deepEqual([down.status, down.body.error.code], [503, 'provider_unavailable']);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
});

for (const then of ['500', 'reset'] as const) {
  test(`create, then ${then}: uncertain with its hold; the same key adopts by label and buys nothing twice`, async (t) => {
    const purser = await openVastServer(t);
    if (!purser) return;
    const { vast } = purser;
    const { token } = await purser.openWallet(LONG);
    vast.faults.createThen = [then];
    const lost = await purser.lease(token, 'k');
    assert.deepEqual([lost.status, lost.body.error.code], [503, 'operation_uncertain']);
    const found = await until('it is adopted and runs', async () => {
      await purser.app.reaper.runOnce();
      purser.clock.advance(2);
      const again = await purser.lease(token, 'k');
      return again.body.status === 'running' && again;
    });
    assert.equal(found.body.charged_usd, PRICE);
    assert.deepEqual([vast.count('create'), vast.instances.size], [1, 1]);
    assert.deepEqual(purser.problems(), []);
  });
}

test('list lag: no second create before two empty lists a minute apart, and what turns up later is swept', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { vast } = purser;
  const { token } = await purser.openWallet(LONG);
  Object.assign(vast.faults, {
    createThen: ['500'],
    listLagMilliseconds: 600_000,
    stuck: { actual_status: 'loading' },
  });
  assert.equal((await purser.lease(token, 'k')).status, 503);
  for (let i = 0; i < 3; i++) {
    assert.equal(
      (await purser.lease(token, 'k')).body.error.code,
      'operation_uncertain',
      'one list is no proof, however often it is read',
    );
    purser.clock.advance(10);
    await purser.app.reaper.runOnce();
  }
  assert.equal(vast.count('create'), 1);
  assert.equal((await purser.budget(token)).held_usd, PRICE);
  purser.clock.advance(60);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  vast.faults.listLagMilliseconds = 0;
  vast.faults.stuck = undefined;
  purser.clock.advance(301);
  await purser.app.reaper.runOnce();
  assert.equal(vast.instances.size, 0, 'the late one was destroyed');
  assert.deepEqual(purser.problems(), []);
});

test('a create that left nothing is released by that proof, and its key buys one machine', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { vast } = purser;
  const { token } = await purser.openWallet(LONG);
  vast.faults.createSays = [[502, 'bad gateway']];
  assert.equal((await purser.lease(token, 'k')).status, 503);
  await purser.app.reaper.runOnce();
  purser.clock.advance(60);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  const made = await purser.lease(token, 'k');
  assert.deepEqual([made.body.status, vast.count('create'), vast.instances.size], ['running', 2, 1]);
  assert.deepEqual(purser.problems(), []);
});

test('several instances with one label: one is kept, the rest destroyed', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { vast } = purser;
  const { token } = await purser.openWallet(LONG);
  Object.assign(vast.faults, { createThen: ['500'], copies: 3 });
  assert.equal((await purser.lease(token, 'k')).status, 503);
  const found = await until('one runs', async () => {
    const again = await purser.lease(token, 'k');
    purser.clock.advance(2);
    await purser.app.reaper.runOnce();
    return again.body.status === 'running' && again;
  });
  assert.deepEqual([...vast.instances.keys()].map(String), [found.body.provider_id]);
  assert.deepEqual(purser.problems(), []);
});

test('two creates race for one offer: one gets it, the other hears so and is charged nothing', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { vast } = purser;
  vast.faults.sellTwice = true;
  const wallets = await Promise.all([purser.openWallet(LONG), purser.openWallet(LONG)]);
  const answers = await Promise.all(wallets.map(({ token }) => purser.lease(token)));
  assert.deepEqual(answers.map((it) => it.status).sort(), [200, 503], answers.map((it) => it.text).join('\n'));
  assert.equal(answers.find((it) => it.status === 503)?.body.error.code, 'capacity_unavailable');
  assert.deepEqual([vast.count('create'), vast.instances.size], [1, 1]);
  const used = await Promise.all(wallets.map(async ({ token }) => (await purser.budget(token)).used_usd));
  assert.deepEqual(used.sort(), ['0.00', PRICE]);
  assert.deepEqual(purser.problems(), []);
});

test('a machine that never becomes happy is destroyed when its time is over, and released', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { vast } = purser;
  const { token } = await purser.openWallet(LONG);
  vast.faults.stuck = { actual_status: 'created', status_msg: 'OCI runtime create failed: no gpu' };
  const failed = await purser.lease(token, 'k');
  assert.deepEqual([failed.status, failed.body.error.code], [503, 'provider_unavailable'], failed.text);
  assert.equal(vast.instances.size, 0);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  assert.deepEqual(purser.problems(), []);
});
