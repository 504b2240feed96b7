import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import test from 'node:test';
import { type Installation, installation } from '../helper/executable.ts';

/** Nobody is there: a backend that doctor must find fault with. */
const compute = {
  provider_three: { backend: 'vast', api_key: 'vast-canary-0123456789', base_url: 'http://127.0.0.1:9' },
};
const VAST = 'provider_three vast: key';

/** What doctor says as JSON and in words; the two must agree, and the exit code with them. */
async function doctor(purser: Installation) {
  const [said, words] = [await purser.cli('--json', 'doctor'), await purser.cli('doctor')];
  const { ok, checks, ...rest } = JSON.parse(said.stdout);
  assert.deepEqual(rest, {});
  for (const check of checks) assert.deepEqual(Object.keys(check), ['name', 'ok', 'detail']);
  assert.equal(
    ok,
    checks.every((it: { ok: boolean }) => it.ok),
  );
  assert.deepEqual([said.code, words.code], ok ? [0, 0] : [1, 1]);
  assert.deepEqual([said.stderr, words.stderr], ['', '']);
  for (const { name, ok } of checks) assert.ok(words.stdout.includes(`${ok ? 'ok  ' : 'BAD '} ${name}: `), name);
  assert.ok(!`${said.stdout}${words.stdout}`.includes('canary'));
  return new Map<string, { ok: boolean; detail: string }>(checks.map((it: { name: string }) => [it.name, it]));
}

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
