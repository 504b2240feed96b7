import assert from 'node:assert/strict';
import { duplexPair } from 'node:stream';
import test from 'node:test';
import { holdEnd } from '../../src/egress/ended-tls.ts';

test('a host hears of the end of a client when it has ended itself, or says nothing for long', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  async function open({ asks = true, answered = false } = {}) {
    const [[client, lease], [server, host]] = [duplexPair(), duplexPair()];
    holdEnd(client, server);
    if (asks) lease.write('question');
    await turn();
    if (answered) host.write('answer');
    await turn();
    lease.end();
    host.resume();
    await turn();
    const hasHeard = async (seconds: number) => {
      t.mock.timers.tick(seconds * 1000);
      for (let count = 0; count < 5; count++) await turn();
      return host.readableEnded;
    };
    assert.equal(await hasHeard(0), false);
    return { server, host, hasHeard };
  }
  for (const nothing of [{ answered: true }, { asks: false }]) {
    const { hasHeard } = await open(nothing);
    assert.deepEqual([await hasHeard(0.9), await hasHeard(0.2)], [false, true]);
  }
  const asked = await open();
  assert.equal(await asked.hasHeard(59), false);
  asked.host.write('the beginning');
  await turn();
  assert.equal(await asked.hasHeard(59), false);
  asked.server.pause();
  assert.equal(await asked.hasHeard(70), false);
  asked.server.resume();
  assert.equal(await asked.hasHeard(70), true);
  const over = await open();
  over.host.end();
  assert.equal(await over.hasHeard(0), true);
});
