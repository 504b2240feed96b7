import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import * as v from 'valibot';
import type { Guest } from '../../src/compute/backend.ts';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { notes, type OffersSettings, slots } from '../../src/compute/engines/container/settings.ts';
import { findMissing } from '../../src/compute/engines/container/trial.ts';
import { whenRead } from '../helper/listener.ts';

const offer = { cpus: 1, memory_gib: 1, max_disk_gb: 5, price_hourly_usd: '0.1' };
const parse = (more: object) =>
  v.parse(slots.provider_three, { backend: 'container', image: 'debian', ...more }) as OffersSettings;
const TWO = {
  offers: [
    { id: 'plain', ...offer },
    { id: 'walled', ...offer, runtime: 'runsc' },
  ],
};

/** An engine that knows the runtimes runc and runsc, and refuses to make a container with another one in Docker's words. */
async function openEngine(t: TestContext, { isPodman = false } = {}) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-runtime-'));
  const posted: { path: string; runtime: string | undefined }[] = [];
  const Components = isPodman ? [{ Name: 'Podman Engine', Version: '4.3.1' }] : [];
  const answers: Record<string, object> = {
    '/version': { Version: '1', Arch: 'amd64', Components },
    '/info': { Driver: 'overlay2', NCPU: 4, MemTotal: 2 ** 33, Runtimes: { runc: {}, runsc: {} } },
    '/containers/json': [],
    '/images/debian/json': { Config: {} },
  };
  const server = createServer(
    whenRead((request, response, body) => {
      const [path = ''] = (request.url as string).split('?');
      const say = (status: number, body: object) => response.writeHead(status).end(JSON.stringify(body));
      if (request.method !== 'POST')
        return say(path in answers ? 200 : 404, answers[path] ?? { message: 'No such container: x' });
      const { HostConfig } = JSON.parse(body.toString());
      posted.push({ path, runtime: HostConfig?.Runtime });
      say(400, { message: `Unknown runtime specified ${HostConfig?.Runtime}` });
    }),
  );
  server.listen(join(directory, 'socket'));
  await once(server, 'listening');
  const open = (more: object) =>
    openContainerBackend(parse({ socket: `unix://${directory}/socket`, ...more }), {
      prefix: 'purser-inst-x-',
      now: () => 0,
    });
  t.after(() => {
    server.closeAllConnections();
    server.close();
    rmSync(directory, { recursive: true });
  });
  return { open, posted };
}

test('a runtime is set for all offers, or for one; anything but a name is a fault', () => {
  const shared = (settings: object) => notes(parse(settings)).some((it) => /share the kernel/.test(it));
  assert.ok(shared(TWO), 'one of its offers is a container of the usual kind');
  assert.ok(!shared({ ...TWO, runtime: 'kata' }));
  assert.ok(shared({ ...TWO, runtime: 'runc' }));
  for (const runtime of ['/usr/bin/runsc', '', 'a b', '-x'])
    assert.throws(() => parse({ ...TWO, runtime }), /must be the name of a runtime/, runtime);
});

test('offers show the runtime that they are made with, and only where the settings name one', async (t) => {
  const { open } = await openEngine(t);
  const runtimes = async (more: object) => {
    const backend = open(more);
    const offers = await backend.offers(60_000);
    await backend.close();
    return offers.map((it) => [it.offerId, it.runtime, it.available]);
  };
  assert.deepEqual(await runtimes(TWO), [
    ['plain', undefined, true],
    ['walled', 'runsc', true],
  ]);
  assert.deepEqual(await runtimes({ ...TWO, runtime: 'kata' }), [
    ['plain', 'kata', true],
    ['walled', 'runsc', true],
  ]);
});

for (const isPodman of [false, true])
  test(`a runtime that ${isPodman ? 'Podman' : 'Docker'} cannot give is refused, and doctor names it`, async (t) => {
    const { open, posted } = await openEngine(t, { isPodman });
    const backend = open({ ...TWO, runtime: 'kata' });
    const order = async (id: string) => {
      const quote = await backend.quote({ offer_id: id, disk_gb: 5, max_seconds: 600 });
      return backend.create({ tag: `purser-inst-x-${id}`, quote, deadline: 600 });
    };
    const created = await order('plain');
    assert.equal(created.kind, 'refused');
    assert.equal((created as { reason: string }).reason, 'There is no runtime kata. Nothing was charged.');
    const words = (created as { words?: string }).words ?? '';
    assert.match(words, isPodman ? /leave `runtime` out/ : /Unknown runtime specified kata/);
    assert.deepEqual(posted, isPodman ? [] : [{ path: '/containers/create', runtime: 'kata' }]);
    const found = (await backend.doctor.check()).filter((it) => it.name.startsWith('runtime'));
    assert.deepEqual(
      found?.map(({ name, ok }) => [name, ok]),
      [
        ['runtime kata', false],
        ['runtime runsc', !isPodman],
      ],
    );
    if (!isPodman)
      assert.match(found?.[0]?.detail ?? '', /^the engine does not know it \(it knows runc, runsc\)\. Add it/);
    await backend.close();
  });

/** What a container of one CPU and 1 GiB does in the trial; by default nothing is missing. */
const KEPT = {
  offer: 'walled',
  outside: '6.12.1',
  version: 'Linux version 4.4.0 #1 SMP',
  /** Seconds of processors that are counted in four seconds. */
  cpuSeconds: 4,
  processes: { current: 9, limit: 512 } as { current?: number; limit?: number },
  take: { exitCode: 137, timedOut: false } as { exitCode: number; timedOut: boolean } | Error | 'never',
  isRunning: true,
  memoryMax: 0,
};
const FOUND: [what: string, change: Partial<typeof KEPT>, found: RegExp | undefined][] = [
  ['all that was sold', {}, undefined],
  ['a container that ends before its command does', { take: 'never', isRunning: false }, undefined],
  ['a container that ends with its memory', { take: new Error('the stream broke'), isRunning: false }, undefined],
  [
    'the kernel of the host',
    { version: 'Linux version 6.12.1 (gcc)' },
    /^it shares the kernel of its host \(6\.12\.1\)/,
  ],
  ['a kernel that nobody tells', { version: '' }, /^nobody says whether it has a kernel of its own under runsc/],
  ['a host that tells no kernel', { outside: '' }, /^nobody says/],
  ['more processors than were sold', { cpuSeconds: 8 }, /^nothing limits its CPU \(2\.0 of 1 were used\)/],
  ['processors that nobody counts', { cpuSeconds: 0 }, /^nothing limits its CPU \(nothing is counted\)/],
  ['processes that nobody counts', { processes: {} }, /^nothing limits its processes \(none is counted\)/],
  ['processes without a limit', { processes: { current: 9 } }, /limits its processes \(the limit is none\)/],
  ['too high a limit', { processes: { current: 9, limit: 600 } }, /limits its processes \(the limit is 600\)/],
  [
    'more memory than was sold',
    { take: { exitCode: 0, timedOut: false } },
    /^nothing limits its memory \(it took 1344 MiB\)/,
  ],
  ['much memory, by its limit', { offer: 'large', memoryMax: 2 ** 33 }, undefined],
  ['much memory without a limit', { offer: 'large' }, /^nothing limits its memory \(the limit is none\)/],
  ['much memory with too high a limit', { offer: 'large', memoryMax: 2 ** 34 }, /\(the limit is 17179869184\)/],
  ['no program that takes memory', { take: { exitCode: 127, timedOut: false } }, /the image has no dd$/],
];
for (const [what, change, found] of FOUND)
  test(`the trial of a container with a kernel of its own: ${what}`, async () => {
    const it = { ...KEPT, ...change };
    let readings = 0;
    const stats = async () => {
      const at = new Date(readings * 4000).toISOString();
      const total_usage = readings++ * it.cpuSeconds * 1e9;
      return {
        read: at,
        cpu_stats: { cpu_usage: { total_usage } },
        pids_stats: it.processes,
        memory_stats: { limit: it.memoryMax },
      };
    };
    const engine = {
      request: async () => ({ KernelVersion: it.outside }),
      ask: (_: string, call: (signal: AbortSignal) => unknown) => call(new AbortController().signal),
      docker: { getContainer: () => ({ stats }) },
    };
    const guest = {
      async exec(_: string, { command }: { command: string }) {
        if (command.startsWith('read ')) return { stdout: Buffer.from(it.version) };
        if (command.startsWith('i=0')) return { exitCode: 137, timedOut: true };
        if (it.take instanceof Error) throw it.take;
        if (it.take === 'never') return new Promise(() => {});
        return it.take;
      },
    } as unknown as Guest;
    const containers = { look: async () => ({ State: { Running: it.isRunning } }) };
    const missing = await findMissing(
      { engine: engine as never, containers: containers as never, guest, ref: 'it' },
      parse({ offers: [...TWO.offers, { ...offer, id: 'large', memory_gib: 8, runtime: 'runsc' }] }),
      { offer_id: it.offer, disk_gb: 1, max_seconds: 600 },
    );
    if (found) assert.match(missing ?? '', found);
    else assert.equal(missing, undefined);
  });
