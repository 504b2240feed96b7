import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { gate } from '../helper/upstream.ts';

/** Lets the database grow by no page more; returns what gives the space back. */
function fillDisk(purser: TestServer): () => void {
  const { client } = purser.app.ledger;
  client.pragma(`max_page_count = ${client.pragma('page_count', { simple: true })}`);
  return () => client.pragma('max_page_count = 1073741823');
}

/** A chat whose answer comes when the disk is full, and is larger than what is left of the last page. */
async function openUnwritten(t: Parameters<typeof openTestServer>[0]) {
  const purser = await openTestServer(t, { settings: { close_wait_seconds: 0 } });
  await purser.app.reaper.stop();
  const wallet = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 0 });
  const { handler, open } = gate((_, response) => {
    const usage = { prompt_tokens: 1, completion_tokens: 1 };
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ choices: [], usage, padding: 'x'.repeat(1_000_000) }));
  });
  purser.upstream.handle = handler;
  const key = randomUUID();
  const ask = () => purser.chat(wallet.token, { model: 'flat' }, key);
  const answer = ask();
  await purser.upstream.arrived(1);
  const free = fillDisk(purser);
  open();
  return { purser, wallet, ask, answer: await answer, free };
}

test('while the disk is full, an answer that cannot be written is no 200, and what is there can be read', async (t) => {
  const { purser, wallet, answer } = await openUnwritten(t);
  assert.equal(answer.status, 503);
  assert.equal((await purser.budget(wallet.token)).held_usd, '0.01', 'the hold stays');
  assert.deepEqual(purser.problems(), []);
});

test('a full disk is no fault of ours: what cannot be written is 503 read_only with a time to retry', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const free = fillDisk(purser);
  const codes = new Set<string>();
  for (let i = 0; i < 200 && !codes.has('read_only'); i++) {
    const { status, body, headers } = await purser.chat(token, {
      model: 'free',
      messages: [{ role: 'user', content: 'x'.repeat(1000) }],
    });
    if (status === 200) continue;
    assert.equal(status, 503);
    assert(Number(headers['retry-after']) >= 1);
    codes.add(body.error.code);
  }
  assert(codes.has('read_only'));
  const ready = await purser.ask('GET', '/readyz');
  assert.deepEqual([ready.status, /SQLITE_FULL/.test(ready.body.reason)], [503, true]);
  free();
  assert.equal((await purser.chat(token)).status, 200, 'and it is over when there is space');
  assert.equal((await purser.ask('GET', '/readyz')).status, 200);
  assert.deepEqual(purser.problems(), []);
});

test('the outcome of a call whose answer could not be written is not known to its caller', async (t) => {
  const { answer } = await openUnwritten(t);
  assert.equal(answer.body.error.code, 'operation_uncertain');
});

test('an operation whose settlement could not be written is resolved once there is space again', async (t) => {
  const { purser, wallet, ask, free } = await openUnwritten(t);
  free();
  await purser.app.inFlight.whenWalletIdle(wallet.id, 30);
  assert.equal((await purser.budget(wallet.token)).held_usd, '0.00');
  assert.notEqual((await ask()).body.error?.code, 'operation_uncertain');
});

test('a wallet with an operation whose settlement could not be written can be closed once there is space again', async (t) => {
  const { purser, wallet, free } = await openUnwritten(t);
  free();
  await purser.app.inFlight.whenWalletIdle(wallet.id, 30);
  const closed = await purser.ask('POST', `/v1/wallets/${wallet.id}/close`, { token: purser.accountKey });
  assert.equal(closed.status, 200);
});
