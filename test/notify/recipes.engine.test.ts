import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import net, { type AddressInfo } from 'node:net';
import { createInterface } from 'node:readline';
import test, { type TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { openTestServer } from '../helper/server.ts';
import { ROOT, recipe } from './recipes-shared.ts';

/** A mail server that keeps the mails it takes. */
async function openMailServer(t: TestContext) {
  const mails: string[] = [];
  const arrived = Promise.withResolvers<void>();
  const server = net.createServer(async (socket) => {
    socket.on('error', () => {});
    socket.write('220 test\r\n');
    let mail: string[] | undefined;
    for await (const line of createInterface({ input: socket, crlfDelay: Number.POSITIVE_INFINITY })) {
      if (mail && line !== '.') mail.push(line);
      else if (mail) {
        mails.push(mail.join('\n'));
        mail = undefined;
        socket.write('250 taken\r\n');
        arrived.resolve();
      } else if (/^data/i.test(line)) {
        mail = [];
        socket.write('354 go on\r\n');
      } else if (/^quit/i.test(line)) socket.end('221 bye\r\n');
      else socket.write('250 ok\r\n');
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => void server.close());
  return { mails, arrived: arrived.promise, port: (server.address() as AddressInfo).port };
}

test('mail: the relay of the documentation checks the signature and sends a mail', async (t) => {
  if (!hasComponent(t, 'python3')) return;
  const smtp = await openMailServer(t);
  const relay = spawn('python3', [new URL('docs/mail-relay.py', ROOT).pathname], {
    env: {
      ...process.env,
      RELAY_SECRET: 'a secret of the relay',
      RELAY_LISTEN: '127.0.0.1:0',
      SMTP_SERVER: `127.0.0.1:${smtp.port}`,
      MAIL_FROM: 'purser@host.example',
      MAIL_TO: 'me@host.example',
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  t.after(async () => {
    relay.kill();
    if (relay.exitCode === null && relay.signalCode === null) await once(relay, 'exit');
  });
  const [line] = (await once(createInterface({ input: relay.stdout }), 'line')) as [string];
  const url = `http://${line.replace('listening on ', '')}`;

  const events = recipe('Mail', { 'http://127.0.0.1:8025': url }, { RELAY_SECRET: 'a secret of the relay' });
  const purser = await openTestServer(t, { settings: { events } });
  const { id } = await purser.openWallet({ name: 'agent 7' });
  await purser.run('wallet.freeze', { id, reason: 'looks\0odd\nscope: installation\r\nwallet_name: \u202eagent 8' });
  await smtp.arrived;
  const [mail = ''] = smtp.mails;
  const [event] = (await purser.run('events.list', {})).events;
  assert.match(mail, /^Subject: \[purser\] frozen agent 7$/m);
  assert.match(mail, new RegExp(`^wallet_id: ${id}$`, 'm'));
  const lines = ['scope: wallet', 'wallet_name: agent 7', 'reason: looks odd scope: installation wallet_name: agent 8'];
  const isOf = (line: string) => /^(scope|wallet_name|reason): /.test(line);
  assert.deepEqual(mail.split('\n').filter(isOf), lines, 'what a tenant wrote adds no line');
  assert.ok(mail.includes(`Message-ID: <${event?.id}@purser>`));

  const forged = { type: 'frozen', id: 'msg_1', data: {} };
  const headers = { 'webhook-id': 'msg_1', 'webhook-timestamp': String(Math.floor(Date.now() / 1000)) };
  const answer = await fetch(url, {
    method: 'POST',
    headers: { ...headers, 'webhook-signature': 'v1,AAAA' },
    body: JSON.stringify(forged),
  });
  assert.equal(answer.status, 401);
  assert.equal(smtp.mails.length, 1);
});
