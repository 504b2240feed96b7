import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { Webhook } from 'standardwebhooks';
import { installation } from '../helper/executable.ts';
import { openReceiver, status } from '../helper/receiver.ts';

const SECRET = 'a signing secret of a test';

/** What the file names instead of a value. */
const variable = (name: string) => `\${${name}}`;

test('kill -9 loses no event, and the commands list and resend them, with a server and without', async (t) => {
  const receiver = await openReceiver(t);
  receiver.reply = status(503);
  const purser = installation(t, {
    settings: {
      events: { receivers: [{ url: variable('RECEIVER'), secret: variable('EVENTS_SECRET'), name: 'ops' }] },
    },
    env: { RECEIVER: receiver.url, EVENTS_SECRET: SECRET },
  });
  let server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 5000 });
  const closed: string[] = [];
  for (let i = 0; i < 5; i++) {
    const order = { account: 'default', name: `agent ${i}`, budget_cents: 100 };
    const { id } = await purser.operate('wallet.create', order);
    await purser.json('wallet', 'close', id);
    closed.push(id);
  }
  await receiver.until(() => receiver.got.length > 0);
  await server.stop('SIGKILL');
  receiver.reply = status(204);
  server = await purser.serve();
  await receiver.until(() => receiver.accepted().length >= 5);
  assert.deepEqual([...new Set(receiver.accepted().map(({ data }) => data.wallet_id))].sort(), closed.sort());
  for (const { text, headers } of receiver.got) new Webhook(SECRET, { format: 'raw' }).verify(text, headers);

  const { events } = await purser.json('events', 'list', '--wallet', closed[0] as string, '--since', '1h');
  assert.deepEqual(
    events.map((it: { type: string; data: { wallet_id: string } }) => [it.type, it.data.wallet_id]),
    [['wallet.closed', closed[0]]],
  );
  const before = receiver.accepted().length;
  const [{ id }] = events;
  assert.equal((await purser.json('events', 'resend', id)).id, id);
  await receiver.until(() => receiver.accepted().length === before + 1);
  assert.equal(receiver.accepted().at(-1)?.id, id);
  const table = await purser.cli('events', 'list', '--type', 'wallet.closed');
  assert.match(table.stdout, /wallet\.closed .*agent 4 .*ops: /);
  assert.equal((await purser.cli('events', 'list', '--type', 'wallet.opened')).code, 2);
  assert.equal((await purser.cli('events', 'resend', `msg_${randomUUID()}`)).code, 3);

  await server.stop();
  await purser.json('events', 'resend', id); // Without a server it waits for the next one.
  const count = receiver.accepted().length;
  await purser.serve();
  await receiver.until(() => receiver.accepted().length === count + 1);
});
