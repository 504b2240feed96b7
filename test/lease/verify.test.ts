import assert from 'node:assert/strict';
import test from 'node:test';
import { verifyLedger } from '../../src/ledger/verify.ts';
import { LONG, openMemoryHouse } from './leases.ts';

test('what a lease says it was charged is rebuilt from its operations', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { client } = house.app.ledger;
  const { id } = (await house.rent(token)).body;
  assert.equal((await house.extend(token, id, 600)).body.charged_usd, '0.12');
  house.memory.ready = false;
  house.app.answerSeconds = 0.05;
  const { id: starting } = (await house.rent(token)).body;
  assert.deepEqual(house.problems(), []);
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
  assert.deepEqual(house.problems(), []);
});
