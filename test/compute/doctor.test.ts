import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import type { Backend, Guest, Machine, MachineQuote } from '../../src/compute/backend.ts';
import { selfTest } from '../../src/compute/self-test.ts';
import { parseList } from '../../src/egress/list.ts';

/** A backend of one offer that does as it is told; the real ones do not lie on request. */
function scripted(
  over: Partial<Backend>,
  state: Machine['state'] = 'running',
): { backend: Backend; provisionSeconds: number; calls: string[] } {
  const calls: string[] = [];
  let machines: Machine[] = [];
  const spec = { chip: 'x', max_seconds: 3600 };
  const backend = {
    name: 'scripted',
    absence: { lists: 1, apartSeconds: 1 },
    offers: async () => [
      {
        offerId: null,
        description: 'dear',
        spec,
        priceHourly: 2n,
        minSeconds: 60,
        maxSeconds: 86_400,
        available: true,
      },
      {
        offerId: null,
        description: 'cheap',
        spec,
        priceHourly: 1n,
        minSeconds: 300,
        maxSeconds: 86_400,
        available: true,
      },
      {
        offerId: null,
        description: 'gone',
        spec,
        priceHourly: 0n,
        minSeconds: 60,
        maxSeconds: 86_400,
        available: false,
      },
    ],
    quote: async (asked: MachineQuote['spec']) => ({ spec: asked, priceHourly: 1n, maxSeconds: 86_400 }),
    async create({ quote }: { quote: MachineQuote }) {
      calls.push(`create ${quote.spec.max_seconds}`);
      machines = [{ ref: 'm', state }];
      return { kind: 'created', ref: 'm' };
    },
    find: async () => machines,
    inspect: async (ref: string) => machines.find((it) => it.ref === ref),
    async extend(_: string, deadline: number) {
      calls.push(`deadline ${deadline - 1_800_000_000}`);
      return { kind: 'done' };
    },
    async destroy(ref: string) {
      calls.push(`destroy ${ref}`);
      machines = machines.filter((it) => it.ref !== ref);
    },
    guest: guest(async () => ({ exitCode: 0, stdout: Buffer.alloc(0), stderr: Buffer.alloc(0) })),
    doctor: { check: async () => [], trial: 'free' },
    close: async () => {},
    ...over,
  } as unknown as Backend;
  return { backend, provisionSeconds: 1, calls };
}

const guest = (exec: () => Promise<unknown>) => ({ exec, prove: async () => undefined }) as unknown as Guest;
const tryIt = (it: ReturnType<typeof scripted>) => selfTest(it, 'inst_x', () => 1_800_000_000);

test('the trial takes the cheapest offer that is free, for a short time', async () => {
  const it = scripted({});
  const { ok, detail } = await tryIt(it);
  assert.equal(ok, true, detail);
  assert.match(detail, /^A machine of the offer "cheap": it ran 0 s|^A machine of the offer "cheap": it ran 1 s/);
  assert.deepEqual(it.calls, ['create 300', 'deadline 300', 'destroy m']);
});

test('a trial may be for one runtime: it takes the cheapest of its offers, and is named after it', async () => {
  const usual = scripted({});
  const offers = async () =>
    (await usual.backend.offers()).map((it) => (it.description === 'dear' ? { ...it, runtime: 'runsc' } : it));
  const tried = (runtime: string | undefined) =>
    selfTest(scripted({ offers }), 'inst_x', () => 1_800_000_000, { runtime });
  const [walled, usualTrial] = [await tried('runsc'), await tried(undefined)];
  assert.deepEqual([walled.name, usualTrial.name], ['trial runsc', 'trial']);
  assert.match(walled.detail, /^A machine of the offer "dear"/);
  assert.match(usualTrial.detail, /^A machine of the offer "cheap"/);
});

test('the trial opens the way out of a machine that has one', async () => {
  for (const [listens, what] of [
    [true, /ran a command, and its way out opened; it was destroyed and is gone$/],
    [
      false,
      /^A machine .* its way out \(egress\) did not open: .* has ended: "no loopback"; it was destroyed and is gone$/,
    ],
  ] as const) {
    let killed = 0;
    const egress: Guest['egress'] = {
      listOf: () => parseList(['pypi.org']),
      async begin() {
        const [stdin, stdout, ended] = [new PassThrough(), new PassThrough(), Promise.withResolvers<string>()];
        if (listens) stdout.write(Buffer.from([6, 0, 0, 0]));
        else ended.resolve('no loopback');
        return { stdin, stdout, ended: ended.promise, kill: () => void killed++ };
      },
    };
    const done = async () => ({ exitCode: 0, stdout: Buffer.alloc(0), stderr: Buffer.alloc(0) });
    const { ok, detail } = await tryIt(scripted({ guest: { ...guest(done), egress } }));
    assert.match(detail, what);
    assert.deepEqual([ok, killed], [listens, 1]);
  }
});

test('a trial is patient with an engine that does not say at once what is free: slow is not full', async () => {
  const usual = scripted({});
  const offers = async (milliseconds = 0) =>
    (await usual.backend.offers()).map((it) => ({ ...it, available: milliseconds >= 20_000 }));
  const { ok, detail } = await tryIt(scripted({ offers }));
  assert.deepEqual([ok, /it was destroyed and is gone$/.test(detail)], [true, true], detail);
});

test('whatever goes wrong in a trial is said, and the machine is destroyed all the same', async () => {
  const fault = async () => {
    throw new Error('the engine is on fire');
  };
  const exec = async () => ({ exitCode: 127, stderr: Buffer.from('no shell') }) as never;
  const lost = { kind: 'unknown', reason: 'reset' } as const;
  for (const [over, what, calls] of [
    [{ offers: fault }, /^No machine was made: the engine is on fire$/, []],
    [{ guest: guest(fault) }, /on fire; it was destroyed and is gone$/, ['create 300', 'destroy m']],
    [{ guest: guest(exec) }, /ended with 127 in it: no shell; it was destroyed/, ['create 300', 'destroy m']],
    [
      { extend: async () => ({ kind: 'refused', reason: 'the watchdog did not take it' }) as const },
      /it runs, but its deadline could not be moved: the watchdog did not take it; it was destroyed/,
      ['create 300', 'destroy m'],
    ],
    [
      { inspect: async () => undefined },
      /it was made, and ended by itself after \d s; it was destroyed/,
      ['create 300', 'destroy m'],
    ],
    [
      { create: async () => lost, find: async () => [] },
      /nobody knows whether it was made: reset; nothing carries its tag/,
      [],
    ],
    [
      { create: async () => ({ kind: 'refused', code: 'provider_unavailable', reason: 'No image.' }) as const },
      /^No machine of the offer "cheap" was made: No image\.$/,
      [],
    ],
  ] as [Partial<Backend>, RegExp, string[]][]) {
    const it = scripted(over);
    const { ok, detail } = await tryIt(it);
    assert.equal(ok, false, detail);
    assert.match(detail, what);
    assert.deepEqual(it.calls, calls);
  }
  const slow = await tryIt(scripted({}, 'provisioning'));
  assert.deepEqual(
    [slow.ok, slow.detail],
    [
      false,
      'A machine of the offer "cheap": it was made, and did not run within 1 s (provision_seconds); it was destroyed and is gone',
    ],
  );
  const full = await tryIt(
    scripted({ create: async () => ({ kind: 'refused', code: 'capacity_unavailable', reason: 'Full.' }) }),
  );
  assert.deepEqual([full.ok, full.detail], [true, 'No machine of the offer "cheap" was made: Full.']);
});
