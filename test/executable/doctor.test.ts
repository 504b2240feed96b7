import assert from 'node:assert/strict';
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import test from 'node:test';
import Database from 'better-sqlite3';
import { installation } from '../helper/executable.ts';
import { books, doctor } from './doctor-shared.ts';

/** Nobody is there: a backend that doctor must find fault with. */
const compute = {
  provider_three: { backend: 'vast', api_key: 'vast-canary-0123456789', base_url: 'http://127.0.0.1:9' },
};

const VAST = 'provider_three vast: key';

test('doctor answers one shape, whether the server runs, does not run, or never has', async (t) => {
  const purser = installation(t, { settings: { compute } });
  const before = await doctor(purser);
  assert.match(before.get('data directory')?.detail ?? '', /There is no database/);
  assert.match(before.get(VAST)?.detail ?? '', /vast cannot be reached/, 'a backend needs no database to be looked at');
  assert.deepEqual(readdirSync(purser.directory), ['purser.yaml'], 'it creates nothing');

  const server = await purser.serve();
  const during = await doctor(purser);
  assert.match(during.get('server')?.detail ?? '', /^running/);
  await server.stop();
  const after = await doctor(purser);
  assert.deepEqual([after.get('server')?.detail, after.get('database')?.ok], ['not running', true]);
  assert.deepEqual([...during.keys()], [...after.keys()], 'names are stable');
  assert.equal(after.get(VAST)?.ok, false);
});

test('a cut or damaged head, a lost commit and a changed row are each found, with the way out', async (t) => {
  const { is, at } = await books(t);
  const way = /Restore the newest good backup, or accept the loss: purser serve --accept-loss$/;
  await is('journal', true, /ledger\.head and ledger\.tip agree$/);
  await is('books', true, /all 1 entries are chained and add up, and every checksum fits/);
  const head = readFileSync(at('ledger.head'), 'utf8');

  writeFileSync(at('ledger.head'), head.slice(0, 30));
  await is('journal', false, /ledger\.head is damaged/);
  await is('journal', false, way);
  rmSync(at('ledger.head'));
  await is('journal', false, /ledger\.head is missing beside a journal of 1 entries/);
  writeFileSync(at('ledger.head'), head.replace(/^1 /, '3 '));
  await is('journal', false, /entries 2 to 3 are lost/);
  writeFileSync(at('ledger.head'), head);

  const tip = readFileSync(at('ledger.tip'), 'utf8');
  writeFileSync(at('ledger.tip'), tip.replace(/[0-9a-f]/, '9'));
  await is('journal', true, /^Warning: .*ledger\.tip is damaged.* The next commit writes it anew/);
  writeFileSync(at('ledger.tip'), tip);

  const database = new Database(at('purser.db'));
  database.exec("update account set name = 'another'");
  database.close();
  await is('journal', true, /agree$/);
  await is('books', false, /account acct_\w+ was changed: its checksum does not match/);
  await is('books', false, way);
});
