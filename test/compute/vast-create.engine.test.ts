import assert from 'node:assert/strict';
import { channel } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import test from 'node:test';
import type { Created } from '../../src/compute/backend.ts';
import { openVastBackend } from '../../src/compute/engines/vast/vast.ts';
import { resetConnection } from '../../src/net/reset.ts';
import { freshTag, leases, now, openBench, QUICK, refOf, settingsOf } from './vast-shared.ts';

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
  const deaf = createServer((socket) => socket.once('data', () => resetConnection(socket)));
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
