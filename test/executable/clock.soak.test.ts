import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { openWallClock } from '../../torture/site.ts';
import { installation, type Serving } from '../helper/executable.ts';

const DAY = 86_400;

/** An installation whose wall clock leaps, and for which no time service vouches until `synchronize`. */
function open(t: TestContext) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-clock-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const clock = openWallClock(t, directory);
  if (!clock) return undefined;
  const settings = { metrics: { listen: '127.0.0.1:0' } };
  const purser = installation(t, { env: clock.env, settings });
  const synchronize = () =>
    writeFileSync(join(directory, 'no-time-service', 'timedatectl'), '#!/bin/sh\necho yes\n', { mode: 0o755 });
  const account = async () => (await purser.json('account', 'list')).accounts[0].id as string;
  const wallet = async (...args: string[]) =>
    purser.json('wallet', 'create', '--account', await account(), '--name', 'w', '--budget-cents', '100', ...args);
  const statusOf = async (id: string) => (await purser.json('wallet', 'show', id)).status as string;
  return { purser, clock, synchronize, account, wallet, statusOf };
}

const readiness = async (server: Serving) => (await server.ask('GET', '/readyz')).text;
const AHEAD = /the clock of this machine is 10 days ahead of .* `purser serve --accept-clock`/;

test('a start with the clock ten days ahead ends nothing, says so everywhere, and leaves no trace', async (t) => {
  const it = open(t);
  if (!it) return;
  const { purser, clock, account, wallet, statusOf } = it;
  const first = await purser.serve();
  await purser.json('account', 'credit', await account(), '1000c');
  const { id } = await wallet('--expires', '3600');
  await first.stop();

  clock.leap(10 * DAY);
  for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
    const server = await purser.serve();
    assert.match(await readiness(server), AHEAD);
    assert.match(String((await server.logged('clock.doubted')).msg), AHEAD);
    assert.match((await purser.json('status')).clock.holds_blocked, AHEAD);
    const doctor = JSON.parse((await purser.cli('--json', 'doctor')).stdout);
    const check = doctor.checks.find(({ name }: { name: string }) => name === 'clock');
    assert.equal(check.ok, false);
    assert.match(
      check.detail,
      /10 days ahead .* If it is right, stop the server and start it once with --accept-clock/,
    );
    const refused = await purser.cli(
      'wallet',
      'create',
      '--account',
      await account(),
      '--name',
      'x',
      '--budget-cents',
      '100',
    );
    assert.equal(refused.code, 5);
    assert.match(refused.stderr, /No new wallets: the clock of this machine/);
    assert.equal(await statusOf(id), 'active');
    await server.stop(signal);
  }
  const command = await purser.cli(
    'wallet',
    'create',
    '--account',
    await account(),
    '--name',
    'x',
    '--budget-cents',
    '100',
  );
  assert.equal(command.code, 5, 'a command without a server believes it no more');

  clock.leap(0);
  const back = await purser.serve();
  assert.match(await readiness(back), /"ready":true/);
  assert.equal(await statusOf(id), 'active');
  await wallet();
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
});

test('after a wrong future was believed, --accept-clock leads back', async (t) => {
  const it = open(t);
  if (!it) return;
  const { purser, clock, account, wallet, statusOf } = it;
  const first = await purser.serve();
  await purser.json('account', 'credit', await account(), '1000c');
  const { id } = await wallet('--expires', '3600');
  await first.stop();

  clock.leap(10 * DAY);
  const wrong = await purser.serve('--accept-clock');
  assert.equal((await wrong.logged('clock.accepted')).direction, 'ahead');
  await wrong.logged('wallet.closed');
  assert.equal(await statusOf(id), 'closed');
  const inTheFuture = await wallet('--expires', '3600');
  await wrong.stop();

  clock.leap(0);
  const doubting = await purser.serve();
  assert.match(await readiness(doubting), /is 10 days behind the newest time in these books, .*--accept-clock/);
  await doubting.stop();
  const again = await purser.serve();
  assert.match(await readiness(again), /10 days behind/, 'over restarts');
  await again.stop();

  const back = await purser.serve('--accept-clock');
  assert.match(await readiness(back), /"ready":true/);
  assert.equal(await statusOf(inTheFuture.id), 'active', 'it keeps its date');
  const now = Math.floor(Date.now() / 1000);
  const fresh = await wallet('--expires', '3600');
  const { expires_at: expiresAt } = await purser.json('wallet', 'show', fresh.id);
  assert.ok(Math.abs(expiresAt - now - 3600) < 60, 'expiry follows the wall clock');
  await back.stop();
  const usual = await purser.serve();
  assert.match(await readiness(usual), /"ready":true/, 'the words are needed once');
  await wallet();
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
});

test('a server in doubt goes on by itself when the clock is synchronized, or set right', async (t) => {
  const it = open(t);
  if (!it) return;
  const { purser, clock, synchronize } = it;
  await (await purser.serve()).stop();
  clock.leap(10 * DAY);
  const server = await purser.serve();
  assert.match(await readiness(server), AHEAD);
  clock.leap(0);
  assert.match(await readiness(server), /"ready":true/, 'set right');
  await server.logged('clock.set_right');
  await server.stop();

  clock.leap(20 * DAY);
  const later = await purser.serve();
  assert.match(await readiness(later), /20 days ahead/);
  synchronize();
  assert.equal((await later.logged('clock.accepted')).by, 'a time service vouches for it');
  assert.match(await readiness(later), /"ready":true/);
  await later.stop();
  const next = await purser.serve();
  assert.match(await readiness(next), /"ready":true/);
});

test('a machine without a time service that was off for a weekend starts as ever; after a fortnight it asks', async (t) => {
  const it = open(t);
  if (!it) return;
  const { purser } = it;
  await (await purser.serve()).stop();
  const file = join(purser.directory, 'ledger.clock');
  /** What a machine that was switched off for so long finds: another boot, and an old sighting. */
  const off = (seconds: number) => {
    const { at } = JSON.parse(readFileSync(file, 'utf8'));
    writeFileSync(file, JSON.stringify({ at: at - seconds, boot: { id: 'another', seconds: 5000 } }));
  };
  off(3 * DAY);
  const monday = await purser.serve();
  assert.match(await readiness(monday), /"ready":true/);
  await monday.stop();
  // The books have to be as old as the sighting: without entries they are, but for the time of their installation.
  off(3 * DAY);
  writeFileSync(file, 'damaged');
  const unknown = await purser.serve();
  assert.match(await readiness(unknown), /"ready":true/, 'books that do not say when they were served');
});
