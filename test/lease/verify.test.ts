import assert from 'node:assert/strict';
import test from 'node:test';
import { verifyLedger } from '../../src/ledger/verify.ts';
import { LONG, openMemoryServer } from './leases.ts';

test('what a lease says it was charged is rebuilt from its operations', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { client } = purser.app.ledger;
  const { id } = (await purser.rent(token)).body;
  assert.equal((await purser.extend(token, id, 600)).body.charged_usd, '0.12');
  purser.memory.ready = false;
  purser.app.answerSeconds = 0.05;
  const { id: starting } = (await purser.rent(token)).body;
  assert.deepEqual(purser.problems(), []);
  for (const [resource, nanos] of [
    [id, 119_999_999],
    [starting, 60_000_000],
  ]) {
    const before = client.prepare('select charged_nanos from resource where id = ?').pluck().get(resource);
    client.prepare('update resource set charged_nanos = ? where id = ?').run(nanos, resource);
    assert(
      verifyLedger(client).problems.some((it) => it.startsWith(`resource ${resource} says it was charged ${nanos}`)),
    );
    client.prepare('update resource set charged_nanos = ? where id = ?').run(before, resource);
  }
  assert.deepEqual(purser.problems(), []);
});
