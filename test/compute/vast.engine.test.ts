import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { Secret } from '../../src/base/secret.ts';
import { tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { openVastBackend } from '../../src/compute/engines/vast/vast.ts';
import { until } from '../helper/waiting.ts';
import { conform, type Subject } from './conformance.ts';
import { type FakeVast, openFakeVast, VAST_KEY } from './engines/fake-vast.ts';
import { freshTag, INSTALLATION, leases, now, openBench, QUICK, refOf, settingsOf } from './vast-shared.ts';

let vastOfSuite: FakeVast | undefined;
after(() => vastOfSuite?.close());

conform('vast', async (t): Promise<Subject | undefined> => {
  vastOfSuite ??= await openFakeVast(t, { shared: true });
  if (!vastOfSuite) return undefined;
  const backend = openVastBackend(settingsOf(vastOfSuite.url), { leases, now, spacing: QUICK });
  t.after(() => backend.close());
  const spec = { offer_id: String(vastOfSuite.offer()), disk_gb: 16, max_seconds: 600 };
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
  const check = async (it = backend) => await it.doctor.check();
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
