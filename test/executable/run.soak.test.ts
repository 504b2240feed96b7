import assert from 'node:assert/strict';
import { once } from 'node:events';
import { renameSync } from 'node:fs';
import http from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import test, { type TestContext } from 'node:test';
import { installation } from '../helper/executable.ts';

/** Puts a relay before the operator socket of a server. `on` is told each command, and the relay waits for it. */
async function relay(t: TestContext, directory: string, on: (name: string) => Promise<unknown>): Promise<void> {
  const [path, behind] = [join(directory, 'purser.sock'), join(directory, 'behind.sock')];
  renameSync(path, behind);
  const server = http.createServer(async (request, response) => {
    const body = await text(request);
    await on(JSON.parse(body).name);
    const passed = http.request({ socketPath: behind, method: 'POST', path: '/', agent: false }, (answer) => {
      response.writeHead(200, { connection: 'close' });
      answer.pipe(response);
    });
    passed.on('error', () => response.destroy());
    passed.end(body);
  });
  server.listen(path);
  await once(server, 'listening');
  t.after(() => new Promise((resolve) => server.close(resolve)));
}

test('a signal that comes before the program does starts nothing, and leaves no wallet open', async (t) => {
  const purser = installation(t);
  await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '2000c');
  await relay(t, purser.directory, async (name) => {
    if (name === 'wallet.gateway-key') running.child.kill('SIGINT'); // It has a wallet, and no program yet.
  });
  const running = purser.launch('run', '--budget', '5.00', '--', 'echo', 'started');
  const { signal } = await running.ended;
  assert.deepEqual([signal, running.output.stdout], ['SIGINT', '']);
  assert.match(
    running.output.stderr,
    /^wal_\S+ is open for echo\. .*\nwal_\S+ is closed: 0\.00 of 5\.00 USD spent\.\n$/,
  );
  assert.equal((await purser.json('wallet', 'list')).wallets[0].status, 'closed');
});

test('a signal while the wallet closes ends the waiting, and says how far it is', async (t) => {
  const purser = installation(t);
  await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '2000c');
  const shown = Promise.withResolvers<void>();
  await relay(t, purser.directory, async (name) => {
    if (name === 'wallet.show') shown.resolve();
    if (name !== 'wallet.close') return;
    running.child.kill('SIGINT');
    await shown.promise;
  });
  const running = purser.launch('run', '--budget', '5.00', '--', 'true');
  const { signal } = await running.ended;
  assert.equal(signal, 'SIGINT');
  assert.match(
    running.output.stderr,
    /^wal_\S+ is open for true\. .*\nwal_\S+ is active: 0\.00 of 5\.00 USD spent, 0\.00 held\. The server closes it\.\n$/,
  );
});

for (const way of ['over the socket of a running server', 'in its own process'] as const)
  test(`raise, lower, extend, refill and freeze, asked ${way}`, async (t) => {
    const purser = installation(t);
    const server = await purser.serve();
    if (way === 'in its own process') await server.stop();
    const { id: account } = await purser.json('account', 'create', 'research', '--credit-cents', '2000');
    const create = ['wallet', 'create', '--account', account, '--name', 'agent', '--budget-cents', '500'];
    const { id } = await purser.json(...create, '--expires', '3600');
    const before = await purser.json('wallet', 'show', id);
    assert.equal((await purser.json('wallet', 'raise', id, '300c', '--key', 'a')).budget_usd, '8.00');
    assert.equal((await purser.json('wallet', 'raise', id, '300c', '--key', 'a')).budget_usd, '8.00');
    const short = await purser.cli('--json', 'wallet', 'lower', id, '900c');
    assert.deepEqual([short.code, JSON.parse(short.stdout).budget_usd], [0, '0.00']);
    assert.match(short.stderr, /^Only 8\.00 USD were moved: a lower stops at what is spent/);
    const none = await purser.cli('wallet', 'lower', id, '1c');
    assert.deepEqual([none.code, none.stderr.split(':')[0]], [0, 'Nothing was moved']);
    assert.equal((await purser.cli('wallet', 'raise', id, '300c', '--key', 'a')).stderr, '');
    assert.equal((await purser.json('wallet', 'raise', id, '200c')).budget_usd, '2.00');
    assert.equal((await purser.json('wallet', 'extend', id, '7d')).expires_at, before.expires_at + 7 * 86_400);
    const refill = ['wallet', 'refill', id, '--amount', '500c', '--every', 'week', '--zone', 'Europe/Berlin'];
    const { refill: set } = await purser.json(...refill, '--carry', '100c');
    assert.deepEqual(
      { ...set, next_at: 0 },
      { cents: 500, every: 'week', zone: 'Europe/Berlin', carry: 100, next_at: 0 },
    );
    assert.equal((await purser.json(...refill, '--carry', '0c')).refill.carry, 0);
    assert.equal((await purser.json('wallet', 'refill', id, '--off')).refill, null);
    assert.equal((await purser.json('wallet', 'freeze', id, '--reason', 'it loops')).freeze_reason, 'it loops');
    assert.equal((await purser.json('wallet', 'unfreeze', id)).frozen_at, null);
    const all = await purser.json('wallet', 'freeze', '--account', account);
    assert.equal(all.wallets.length, 1);
    for (const wrong of [
      ['wallet', 'raise', id, '0c'],
      ['wallet', 'raise', id, '1.5'],
      ['wallet', 'extend', id, 'soon'],
      ['wallet', 'refill', id, '--amount', '5c'],
      ['wallet', 'refill', id, '--amount', '5c', '--every', 'year'],
      ['wallet', 'refill', id, '--amount', '5c', '--every', 'day', '--zone', 'Mars/Base'],
      ['wallet', 'refill', id, '--amount', '5c', '--every', 'day', '--carry', 'some'],
      ['wallet', 'refill', id, '--amount', '5c', '--every', 'day', '--carry', '-1'],
      ['wallet', 'freeze'],
      ['wallet', 'close', id, '--account', account],
    ]) {
      const refused = await purser.cli(...wrong);
      assert.deepEqual([refused.code, refused.stdout], [2, ''], `${wrong.join(' ')}: ${refused.stderr}`);
      assert.notEqual(refused.stderr, '', wrong.join(' '));
    }
    assert.equal((await purser.cli('wallet', 'raise', id, '5000c')).code, 4);
    const closed = await purser.json('wallet', 'close', '--account', account, '--wait');
    assert.deepEqual(
      closed.wallets.map((it: { status: string }) => it.status),
      ['closed'],
    );
    assert.equal((await purser.cli('ledger', 'verify')).code, 0);
  });
