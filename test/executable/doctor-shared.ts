import assert from 'node:assert/strict';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { type Installation, type InstallationOptions, installation } from '../helper/executable.ts';

export type Check = { name: string; ok: boolean; detail: string };

/** What doctor says as JSON and in words; the two must agree, and the exit code with them. */
export async function doctor(purser: Installation) {
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
  for (const { name, ok, detail } of checks) {
    const word = !ok ? 'BAD ' : detail.startsWith('Warning: ') ? 'warn' : 'ok  ';
    assert.ok(words.stdout.includes(`${word} ${name}: `), name);
  }
  assert.ok(!`${said.stdout}${words.stdout}`.includes('canary'));
  const advised = checks.filter((it: Check) => !it.ok || it.detail.startsWith('Warning: '));
  for (const { name, detail } of advised)
    assert.match(detail, /[.:)] \S/, `${name}: what is, and what to do: ${detail}`);
  return new Map<string, { ok: boolean; detail: string }>(checks.map((it: { name: string }) => [it.name, it]));
}

/** Books with some entries, and nobody who serves them. */
export async function books(t: TestContext, options: InstallationOptions = {}) {
  const purser = installation(t, options);
  const server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 1000 });
  await server.stop();
  const findingOf = async (name: string, by = purser) => {
    const { checks } = JSON.parse((await by.cli('--json', 'doctor')).stdout) as { checks: Check[] };
    return checks.find((it) => it.name === name) as Check;
  };
  return {
    purser,
    findingOf,
    at: (name: string) => join(purser.directory, name),
    /** The same installation, run in another way. */
    by: (over: InstallationOptions) =>
      installation({ after() {} }, { ...options, directory: purser.directory, ...over }),
    async is(name: string, ok: boolean, what: RegExp, by = purser) {
      const found = await findingOf(name, by);
      assert.deepEqual([found.ok, what.test(found.detail)], [ok, true], `${name}: ${JSON.stringify(found)}`);
    },
  };
}
