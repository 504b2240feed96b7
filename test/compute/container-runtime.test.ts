import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import * as v from 'valibot';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { notes, type OffersSettings, slots } from '../../src/compute/engines/container/settings.ts';

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
  };
  const server = createServer(async (request, response) => {
    const chunks = await request.toArray();
    const [path = ''] = (request.url as string).split('?');
    const say = (status: number, body: object) => response.writeHead(status).end(JSON.stringify(body));
    if (request.method !== 'POST')
      return say(path in answers ? 200 : 404, answers[path] ?? { message: 'No such container: x' });
    const { HostConfig } = JSON.parse(Buffer.concat(chunks).toString());
    posted.push({ path, runtime: HostConfig?.Runtime });
    say(400, { message: `Unknown runtime specified ${HostConfig?.Runtime}` });
  });
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
    const found = (await backend.doctor?.check())?.filter((it) => it.name.startsWith('runtime'));
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
