import assert from 'node:assert/strict';
import test from 'node:test';
import { SECRET_WORDS } from '../compute/engines/memory.ts';
import { until } from '../helper/waiting.ts';
import { asAccount, asOperator } from '../ui/sample.ts';
import { LONG, openMemoryServer } from './leases.ts';

/** What an engine says names sockets and addresses: it is for the operator and the log. */

async function open(t: Parameters<typeof openMemoryServer>[0]) {
  const purser = await openMemoryServer(t);
  const { id: walletId, token } = await purser.openWallet(LONG);
  /**
   * Asserts that an agent's answer and the account's page have our own words alone, and the operator's list and page and the
   * log the engine's.
   */
  async function assertOwnWords({ body, text }: { body: any; text: string }, own: RegExp) {
    assert.match(body.error.message, own);
    assert.doesNotMatch(text, /secret-place|ENOENT/);
    const [operation] = (await purser.run('operation.list', {})).operations;
    assert(operation);
    assert(operation.reason?.includes(SECRET_WORDS), JSON.stringify(operation));
    const line = purser.log.find((it) => it.includes('operation.released') && it.includes(operation.id));
    assert(line?.includes(SECRET_WORDS) && line.includes(operation.request_id), line);
    for (const path of [`/wallets/${walletId}`, `/wallets/${walletId}?steps=all`]) {
      const { status, html } = await (await asAccount(purser)).get(path);
      assert.equal(status, 200);
      assert.match(html, />released</);
      assert.doesNotMatch(html, /secret-place|ENOENT/);
      assert.match((await (await asOperator(purser)).get(path)).html, /secret-place/);
    }
  }
  return { purser, token, assertOwnWords };
}

test('a create that the engine refused is told of in our own words', async (t) => {
  const { purser, token, assertOwnWords } = await open(t);
  purser.memory.room = 0;
  const answer = await purser.lease(token);
  await assertOwnWords(answer, /^No room\. Nothing was charged\.$/);
  const [operation] = (await purser.run('operation.list', {})).operations;
  assert.equal(operation?.request_id, answer.body.request_id, 'the log has it under the request of the answer');
});

test('a machine that never became ready is told of in our own words', async (t) => {
  const { purser, token, assertOwnWords } = await open(t);
  purser.memory.before.inspect = () => Promise.reject(new Error(SECRET_WORDS));
  const made = purser.lease(token);
  const shown = async () => (await purser.run('resource.list', { all: true })).resources[0];
  const { id } = await until('its trouble is known to the operator', async () => {
    const it = await shown();
    return it?.last_error === SECRET_WORDS && it;
  });
  assert.doesNotMatch(JSON.stringify(await purser.status(token, id)), /secret-place/);
  purser.memory.before = {};
  purser.memory.ready = false;
  for (const it of purser.memory.machines.values()) it.state = 'provisioning';
  purser.memory.after.inspect = undefined as never;
  await purser.stop(token, id);
  await assertOwnWords(await made, /^The machine never became ready \(requested\), and nothing was charged\.$/);
});

test('an extension that the engine refused is told of in our own words, when it is repeated too', async (t) => {
  const { purser, token, assertOwnWords } = await open(t);
  const { id } = (await purser.rent(token)).body;
  const [{ backend }] = purser.app.slots.find('provider_three').backends;
  t.mock.method(backend, 'extend', async () => ({ kind: 'refused', reason: SECRET_WORDS }));
  await assertOwnWords(await purser.extend(token, id, 60), /^The lease has ended, or its provider did not extend it\./);
});
