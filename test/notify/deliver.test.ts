import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { touchKeys } from '../../src/access/writes.ts';
import { openReceiver, type Receiver, status } from '../helper/receiver.ts';
import { openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';

// How events reach their receivers: signed, in order, at least once, and at nobody else's cost.

const SECRET = `whsec_${Buffer.from('a-signing-secret-canary-01234567').toString('base64')}`;

const DAY = 86_400;

async function openWith(
  t: TestContext,
  receivers: Record<string, unknown>[],
  options: TestServerOptions = {},
): Promise<TestServer> {
  return openTestServer(t, {
    ...options,
    settings: { events: { receivers: receivers.map((it) => ({ secret: SECRET, ...it })) }, ...options.settings },
  });
}

/** Opens and closes a wallet: one event. */
async function closeOne(purser: TestServer): Promise<string> {
  const { id } = await purser.openWallet();
  await purser.run('wallet.close', { id });
  return id;
}

/** Lets time pass, and the notifier see it. */
function pass(purser: TestServer, seconds: number): void {
  purser.clock.advance(seconds);
  purser.app.notifier.wake();
}

const idsOf = (receiver: Receiver) => receiver.accepted().map(({ data }) => data.wallet_id);
const deliveriesOf = async (purser: TestServer) => (await purser.run('events.list', {})).events[0]?.deliveries ?? [];

/** Waits until what the receiver answered is on record. */
async function recorded(purser: TestServer, holds: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await holds())) await purser.app.ledger.write(touchKeys, { used: [] });
}

test('an event is signed as the specification says', async (t) => {
  const receiver = await openReceiver(t);
  const plain = await openReceiver(t);
  const purser = await openWith(t, [
    { url: `${receiver.url}/hook?a=b` },
    { url: plain.url, secret: 'a plain signing secret' },
  ]);
  const id = await closeOne(purser);
  await receiver.until(() => receiver.accepted().length === 1);
  await plain.until(() => plain.accepted().length === 1);
  const [got] = receiver.got;
  assert.ok(got);
  assert.equal(got.path, '/hook?a=b');
  const now = Math.floor(purser.clock.wall() / 1000);
  assert.equal(Number(got.headers['webhook-timestamp']), now);
  const told = new Webhook(SECRET).verify(got.text, got.headers) as Record<string, any>;
  assert.deepEqual(
    [told.id, told.type, told.created_at, told.data.wallet_id],
    [got.headers['webhook-id'], 'wallet.closed', now, id],
  );
  assert.throws(() => new Webhook(SECRET).verify(got.text.replace('closed', 'opened'), got.headers));
  const other = plain.got[0] ?? assert.fail();
  new Webhook('a plain signing secret', { format: 'raw' }).verify(other.text, other.headers);
  assert.throws(() => new Webhook(SECRET).verify(other.text, other.headers));
});

test('events of one wallet arrive in order, whatever fails meanwhile', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openWith(t, [{ url: receiver.url }]);
  const { id, token } = await purser.openWallet({ budget_cents: 100 });
  let refusals = 0;
  receiver.reply = (got, response) => {
    const isRefused = got.text.includes('"percent":50') && refusals++ < 3;
    return status(isRefused ? 400 : 204)(got, response);
  };
  for (let i = 0; i < 80; i++) assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
  await purser.run('wallet.close', { id });
  const other = await closeOne(purser); // Another wallet does not wait for this one.
  await receiver.until(() => receiver.accepted().length === 1);
  assert.equal(receiver.accepted()[0]?.data.wallet_id, other);
  for (const failed of [1, 2, 3]) {
    await recorded(purser, async () => {
      const { events } = await purser.run('events.list', { type: 'wallet.threshold' });
      return events.at(-1)?.deliveries[0]?.failed_attempts === failed;
    });
    pass(purser, 60);
  }
  await receiver.until(() => receiver.accepted().length === 4);
  assert.deepEqual(
    receiver.accepted().map(({ type, data }) => [type, data.percent]),
    [
      ['wallet.closed', undefined],
      ['wallet.threshold', 50],
      ['wallet.threshold', 80],
      ['wallet.closed', undefined],
    ],
  );
});

test('a receiver that is down gets everything once it is back, at growing intervals, and both are logged', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openWith(t, [{ url: receiver.url, name: 'pager' }]);
  receiver.reply = status(503);
  const ids = [await closeOne(purser)];
  const due: number[] = [];
  for (let i = 1; i <= 12; i++) {
    await recorded(purser, async () => (await deliveriesOf(purser))[0]?.failed_attempts === i);
    const [delivery] = await deliveriesOf(purser);
    due.push((delivery?.next_attempt_at as number) - Math.floor(purser.clock.wall() / 1000));
    pass(purser, 3600);
  }
  assert.deepEqual(due.slice(0, 11), [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600]);
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.failed_attempts === 13);
  ids.push(await closeOne(purser), await closeOne(purser));
  assert.deepEqual([purser.app.notifier.waiting(), receiver.accepted().length], [3, 0]);
  receiver.reply = status(200);
  pass(purser, 60); // Long before the first of them is due again: the others find that the receiver is back.
  await receiver.until(() => receiver.accepted().length === 3);
  assert.deepEqual(idsOf(receiver).sort(), ids.sort());
  await recorded(purser, () => purser.app.notifier.waiting() === 0);
  const lines = purser.log.map((line) => JSON.parse(line)).filter(({ event }) => /^receiver\./.test(event ?? ''));
  assert.deepEqual(
    lines.map(({ event, receiver: name, error }) => [event, name, error]),
    [
      ['receiver.failing', 'pager', 'answered 503'],
      ['receiver.back', 'pager', undefined],
    ],
  );
  const metrics = await purser.app.events.registry.metrics();
  assert.match(metrics, /purser_events_delivered_total\{receiver="pager"\} 3/);
  assert.match(metrics, /purser_events_failed_total\{receiver="pager"\} 13/);
  assert.match(metrics, /purser_events_waiting 0/);
});

test('after three days an event is given up, which is listed, and it can be sent again', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openWith(t, [{ url: receiver.url, name: 'pager' }]);
  receiver.reply = status(410);
  await closeOne(purser);
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.failed_attempts === 1);
  pass(purser, 3 * DAY);
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.state === 'given_up');
  const [event] = (await purser.run('events.list', {})).events;
  assert.deepEqual([event?.deliveries[0]?.error, event?.deliveries[0]?.failed_attempts], ['answered 410', 2]);
  assert.ok(purser.log.some((line) => JSON.parse(line).event === 'receiver.gave_up'));
  assert.equal(purser.app.notifier.waiting(), 0);
  receiver.reply = status(200);
  await purser.run('events.resend', { id: event?.id as string });
  await receiver.until(() => receiver.accepted().length === 1);
  assert.deepEqual(new Set(receiver.got.map(({ headers }) => headers['webhook-id'])), new Set([event?.id]));
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.state === 'delivered');
  await assert.rejects(purser.run('events.resend', { id: 'msg_none' }), { code: 'not_found' });
  assert.deepEqual(purser.problems(), []);
});

test('a slow receiver delays no other, and no request', async (t) => {
  const [slow, fast] = [await openReceiver(t), await openReceiver(t)];
  const purser = await openWith(t, [
    { url: slow.url, name: 'slow', timeout_seconds: 5 },
    { url: fast.url, name: 'fast' },
  ]);
  slow.reply = () => {}; // Never answers.
  await closeOne(purser);
  await slow.until(() => slow.got.length === 1);
  for (let i = 0; i < 5; i++) await closeOne(purser);
  await fast.until(() => fast.accepted().length === 6);
  assert.equal(slow.got.length, 1);
  const list = async () => (await purser.run('events.list', {})).events.at(-1)?.deliveries;
  await recorded(purser, async () => (await list())?.find((it) => it.receiver === 'slow')?.error != null);
  const [, late] = (await list()) ?? [];
  assert.deepEqual([late?.receiver, late?.state, late?.error], ['slow', 'waiting', 'no answer within 5 s']);
});

test('a redirect is not followed, and the body of an answer is not read to its end', async (t) => {
  const [receiver, elsewhere] = [await openReceiver(t), await openReceiver(t)];
  const purser = await openWith(t, [{ url: receiver.url, timeout_seconds: 5 }]);
  receiver.reply = status(307, { location: elsewhere.url });
  await closeOne(purser);
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.error === 'answered 307');
  assert.deepEqual(elsewhere.got, []);
  const ended = Promise.withResolvers<void>();
  receiver.reply = (_, response) => {
    response.on('close', ended.resolve);
    response.writeHead(200);
    const more = () => {
      while (!response.destroyed && response.write(Buffer.alloc(64 * 1024)));
    };
    response.on('drain', more);
    more();
  };
  pass(purser, 60);
  await ended.promise; // It was cut off: it would never have ended.
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.state === 'delivered');
});

test('what waits at a stop or a crash is delivered after it', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openWith(t, [{ url: receiver.url }]);
  const comeBack = await receiver.leave();
  const ids = [await closeOne(purser), await closeOne(purser)];
  await purser.crash(() => {});
  ids.push(await closeOne(purser));
  await purser.reopen();
  await comeBack();
  pass(purser, 3600);
  await receiver.until(() => receiver.accepted().length === 3);
  assert.deepEqual(idsOf(receiver).sort(), ids.sort());
  await recorded(purser, () => purser.app.notifier.waiting() === 0);
});

test('what could not be tried for days is not given up at the first attempt after them', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openWith(t, [{ url: receiver.url }]);
  receiver.reply = status(503);
  const id = await closeOne(purser);
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.failed_attempts === 1);
  await purser.reopen(() => purser.clock.advance(4 * DAY));
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.failed_attempts === 2);
  assert.equal((await deliveriesOf(purser))[0]?.state, 'waiting', 'the receiver may start as late as the network');
  receiver.reply = status(204);
  pass(purser, 60);
  await receiver.until(() => idsOf(receiver).includes(id));
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.state === 'delivered');

  receiver.reply = status(503);
  await closeOne(purser);
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.failed_attempts === 1);
  pass(purser, 3 * DAY);
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.state === 'given_up');
});

test('an event that a receiver took when the process died is sent again, with the same id', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openWith(t, [{ url: receiver.url }]);
  receiver.reply = async (got, response) => {
    receiver.reply = status(204);
    await purser.crash(() => {}); // Before the answer can be recorded.
    response.on('error', () => {});
    return status(204)(got, response);
  };
  await closeOne(purser);
  await receiver.until(() => receiver.got.length === 2);
  const [first, second] = receiver.got;
  assert.equal(first?.headers['webhook-id'], second?.headers['webhook-id']);
  assert.equal(first?.text, second?.text);
  await recorded(purser, () => purser.app.notifier.waiting() === 0);
});

test('a receiver gets the types that it asked for, in its format', async (t) => {
  const [slack, text, closed] = [await openReceiver(t), await openReceiver(t), await openReceiver(t)];
  const purser = await openWith(t, [
    { url: `${slack.url}/services/T0/B0/secret`, name: 'chat', secret: undefined, format: 'slack' },
    { url: `${text.url}/purser`, name: 'phone', secret: undefined, format: 'text' },
    { url: closed.url, name: 'books', types: ['wallet.closed'] },
  ]);
  const { id } = await purser.openWallet({ name: 'agent <!channel> & 7' });
  await purser.run('wallet.freeze', { id, reason: 'looks odd' });
  const sentenceWith = (name: string) => `No new holds: wallet ${name} (${id}) is frozen (looks odd).`;
  await slack.until(() => slack.got.length === 1);
  await text.until(() => text.got.length === 1);
  assert.deepEqual(JSON.parse(slack.got[0]?.text as string), {
    text: sentenceWith('agent &lt;!channel&gt; &amp; 7'),
  });
  assert.equal(text.got[0]?.text, sentenceWith('agent <!channel> & 7'));
  assert.equal(slack.got[0]?.headers['webhook-signature'], undefined);
  await purser.run('wallet.close', { id });
  await closed.until(() => closed.got.length === 1);
  assert.deepEqual(
    closed.got.map((it) => JSON.parse(it.text).type),
    ['wallet.closed'],
  );
});

test('what an agent or a tenant wrote mentions nobody in a chat, hides no address and adds no line', async (t) => {
  const [slack, text] = [await openReceiver(t), await openReceiver(t)];
  const purser = await openWith(t, [
    { url: slack.url, name: 'chat', secret: undefined, format: 'slack' },
    { url: text.url, name: 'phone', secret: undefined, format: 'text' },
  ]);
  const { id } = await purser.openWallet({ name: '@everyone [sign in](https://evil.example)' });
  await purser.run('wallet.freeze', { id, reason: 'odd).\nModel server prod is down: call @here \u202e' });
  for (const { until, got } of [slack, text]) await until(() => got.length === 1);
  const { text: sentence } = JSON.parse(slack.got[0]?.text as string);
  assert.doesNotMatch(sentence, /@(everyone|here)|\]\(/);
  const frozen = (name: string, reason: string) => `No new holds: wallet ${name} (${id}) is frozen (${reason}).`;
  assert.equal(
    text.got[0]?.text,
    frozen('@everyone [sign in](https://evil.example)', 'odd). Model server prod is down: call @here \\u202e'),
  );
  assert.equal(sentence.replaceAll('\u200b', ''), text.got[0]?.text);
});

test('an event is text that every receiver can encode, whatever a tenant wrote', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openWith(t, [{ url: receiver.url }]);
  const { id } = await purser.openWallet();
  const body = { reason: 'half of a pair: \ud83d' };
  const answer = await purser.ask('POST', `/v1/wallets/${id}/freeze`, { token: purser.accountKey, body });
  assert.equal(answer.status, 200, answer.text);
  await receiver.until(() => receiver.got.length === 1);
  const { data } = JSON.parse(receiver.got[0]?.text as string);
  assert.equal(data.reason, 'half of a pair: \ufffd');
  assert.equal(data.reason, purser.wallet(id).freezeReason);
});

test('addresses, secrets and tokens of receivers are in no log, list or metric', async (t) => {
  const receiver = await openReceiver(t);
  const secret = 'plain-signing-secret-canary';
  const purser = await openWith(t, [
    { url: `${receiver.url}/path-canary-0123?key=query-canary`, secret, name: 'pager' },
  ]);
  const { id, token } = await purser.openWallet();
  const prompt = 'a prompt of the agent, canary';
  await purser.chat(token, { messages: [{ role: 'user', content: prompt }], model: 'flat' });
  await purser.run('wallet.close', { id });
  await receiver.until(() => receiver.got.length === 1);
  const comeBack = await receiver.leave();
  await closeOne(purser);
  await recorded(purser, async () => (await deliveriesOf(purser))[0]?.error != null);
  await comeBack();
  const seen = [
    purser.log.join('\n'),
    JSON.stringify(await purser.run('events.list', {})),
    await purser.app.events.registry.metrics(),
    JSON.stringify(purser.app.config, (_, value) => (typeof value === 'bigint' ? String(value) : value)),
  ].join('\n');
  for (const canary of [secret, 'path-canary', 'query-canary', token, prompt])
    assert.ok(!seen.includes(canary), canary);
  for (const { text } of receiver.got) for (const canary of [secret, token, prompt]) assert.ok(!text.includes(canary));
});

test('events are kept for 32 days', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openWith(t, [{ url: receiver.url }]);
  await closeOne(purser);
  await recorded(purser, () => receiver.got.length === 1 && purser.app.notifier.waiting() === 0);
  purser.clock.advance(32 * DAY - 1);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.run('events.list', {})).events.length, 1);
  purser.clock.advance(1);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.run('events.list', {})).events.length, 0);
  assert.deepEqual(purser.problems(), []);
});

test('a test reaches every receiver, whatever types it wants', async (t) => {
  const [all, few] = [await openReceiver(t), await openReceiver(t)];
  const purser = await openWith(t, [{ url: all.url }, { url: few.url, types: ['disk.low'] }]);
  const sent = await purser.run('events.test', {});
  for (const receiver of [all, few]) {
    await receiver.until(() => receiver.accepted().length === 1);
    assert.deepEqual(
      receiver.accepted().map(({ id, type }) => [id, type]),
      [[sent.id, 'test']],
    );
  }
  const none = await openTestServer(t);
  await assert.rejects(none.run('events.test', {}), { code: 'conflict' });
});
