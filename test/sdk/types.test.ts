import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import * as sdk from '../../sdk/javascript/purser.mjs';
import { openLocalLease } from '../http/trees-shared.ts';
import { ROOT } from './examples.ts';

// The types beside the client in JavaScript. The compiler checks this file against them (`npm run check`), and running it checks
// them against the client: each declared name is there, and a whole life of a wallet has values of the declared types.

const DECLARED = readFileSync(join(ROOT, 'sdk/javascript/purser.d.mts'), 'utf8');

test('what is declared is there, and what is exported is declared', () => {
  const declared = [...DECLARED.matchAll(/^export declare (?:class|function|const) (\w+)/gm)].map(([, it]) => it);
  assert.deepEqual(declared.toSorted(), Object.keys(sdk).toSorted());
  for (const [, name, body] of DECLARED.matchAll(/^export declare class (\w+)[^{]*\{\n([\s\S]*?)^\}/gm)) {
    const declaredMethods = new Set([...(body as string).matchAll(/^ {2}(\w+)(?:<T>)?\(/gm)].map(([, it]) => it));
    const { prototype } = (sdk as unknown as Record<string, { prototype: object }>)[name as string] as {
      prototype: object;
    };
    const methods = Object.entries(Object.getOwnPropertyDescriptors(prototype))
      .filter(([it, { value }]) => it !== 'constructor' && typeof value === 'function')
      .map(([it]) => it);
    assert.deepEqual([...declaredMethods].toSorted(), methods.toSorted(), name);
  }
});

test('a whole life of a wallet has values of the declared types', async (t) => {
  const { purser } = await openLocalLease(t);
  const { token } = await purser.openWallet();
  const directory = mkdtempSync(join(tmpdir(), 'purser-types-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const options: sdk.WalletOptions = { url: purser.url, token, patience: 30 };
  await using w: sdk.Wallet = sdk.wallet(options);
  const version: string = sdk.version;
  const available: string = await w.available;
  const ownId: string | undefined = w.id;
  const budget: sdk.Budget = await w.budget();
  const amounts: string[] = [budget.budget_usd, budget.used_usd, budget.held_usd, budget.delegated_usd];
  const times: (number | null)[] = [budget.frozen_at, budget.expires_at];
  assert.deepEqual([typeof version, available, ownId], ['string', '10.00', undefined]);
  assert(amounts.every((it) => /^\d+\.\d\d/.test(it)) && times.every((it) => it === null || Number.isInteger(it)));

  const [offer] = (await w.offers()) satisfies sdk.Offer[];
  const price: string | undefined = offer?.price_hourly_usd;
  const isThere: boolean | undefined = offer?.available;
  const size: { cpus: number; memory_gib: number; gpus: number } | undefined = offer?.size;
  assert.deepEqual([typeof price, typeof isThere, typeof (size?.cpus ?? 0)], ['string', 'boolean', 'number']);
  const [model] = (await w.models()) satisfies sdk.Model[];
  assert.equal(typeof (model as sdk.Model).id, 'string');
  const env: Record<string, string> = await w.env({ models: [(model as sdk.Model).id], maxPriceUsd: '0.50' });
  assert(Object.values(env).every((it) => typeof it === 'string') && 'OPENAI_API_KEY' in env);

  const rent: sdk.Rent = { cpus: 1, memoryGib: 1, minutes: 10, provider: 'provider_one', waitSeconds: 30 };
  const given: number = await w.rent(rent, async (machine: sdk.Machine) => (await machine.run('exit 3')).exitCode);
  assert.equal(given, 3, 'what the block returns');
  await using m: sdk.Machine = await w.rent(rent);
  const facts: [string, string, number, Record<string, unknown>] = [m.id, m.status, m.expiresAt, m.data];
  assert.deepEqual(
    facts.map((it) => typeof it),
    ['string', 'string', 'number', 'object'],
  );
  const order: sdk.Run = { stdin: 'in\n', cwd: '.', env: { A: 'a' }, timeout: 20, onStdout: (text: string) => text };
  const result: sdk.Result = await m.run('cat; echo $A', order);
  assert.deepEqual(result, { exitCode: 0, stdout: 'in\na\n', stderr: '', timedOut: false, truncated: false });
  writeFileSync(join(directory, 'a'), 'b');
  await m.copy(join(directory, 'a'), 'a');
  await m.fetch('a', join(directory, 'c'));
  assert.equal(readFileSync(join(directory, 'c'), 'utf8'), 'b');
  const place: sdk.Place = { cwd: '.', env: {} };
  const process: sdk.Process = await m.start('echo begun; sleep 600', place);
  const log: string = await process.log(0);
  await process.kill();
  const code: number | null = await process.exitCode();
  assert.deepEqual([typeof process.id, typeof process.data, typeof log, code], ['string', 'object', 'string', 137]);
  const { url, expiresAt }: { url: string; expiresAt: number } = await m.port(8888);
  assert.deepEqual([typeof url, typeof expiresAt], ['string', 'number']);
  assert((await m.refresh()) instanceof sdk.Machine && (await w.machine(m.id)) instanceof sdk.Machine);
  assert((await w.machines()).every((it: sdk.Machine) => it instanceof sdk.Machine));

  const child: sdk.Wallet = await w.delegate('a', { usd: '1.00', minutes: 5 });
  assert.equal(typeof child.id, 'string');
  await child.close();
  const inside: string = await w.delegate('b', { usd: '0.50' }, (it: sdk.Wallet) => it.available);
  assert.equal(inside, '0.50');

  const refused: unknown = await w.delegate('c', { usd: '999' }).catch((error: unknown) => error);
  assert(refused instanceof sdk.InsufficientFunds && refused instanceof sdk.PurserError);
  const { code: name, status, requestId, retryAfter }: sdk.PurserError = refused;
  assert.deepEqual([name, status, typeof requestId, retryAfter], ['insufficient_funds', 402, 'string', undefined]);
  assert(sdk.FundsHeld.prototype instanceof sdk.InsufficientFunds);
  assert(sdk.OperationUncertain.prototype instanceof sdk.PurserError);
  assert(sdk.ConnectionLost.prototype instanceof sdk.PurserError);
  await m.stop();
});

/** Never called: what the compiler has to refuse. */
export function refusedByTheCompiler(w: sdk.Wallet, m: sdk.Machine, error: sdk.OperationUncertain): void {
  // @ts-expect-error It may be undefined.
  error.key.trim();
  // @ts-expect-error Money is no number.
  void w.delegate('a', { usd: 1 });
  // @ts-expect-error A child has a budget.
  void w.delegate('a');
  // @ts-expect-error It is memoryGib.
  void w.rent({ memory: 1 });
  // @ts-expect-error There is no such slot.
  void w.rent({ provider: 'provider_four' });
  // @ts-expect-error It is exitCode.
  void m.run('true').then((it) => it.exit_code);
  // @ts-expect-error Only a text or bytes.
  void m.run('cat', { stdin: 7 });
  // @ts-expect-error It cannot be set.
  m.id = 'res_1';
}
