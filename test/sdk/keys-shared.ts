import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { openBreaking } from './broken-shared.ts';
import { openSandbox, run } from './examples.ts';

/** Prints the kind and the key of the error with which a paid call ends. */
const PROGRAMS = {
  js: `import { wallet } from './purser.mjs';
const error = await wallet({ patience: 0 }).delegate('child', { usd: '0.25' }).catch((it) => it);
console.log(error.name, error.key);`,
  python: `from purser import PurserError, wallet
try:
    wallet(patience=0).delegate("child", "0.25")
except PurserError as error:
    print(type(error).__name__, error.key)`,
};

/** Checks that a paid call whose answer was lost tells its key, with which it is done once. */
export async function assertToldKey(t: TestContext, language: keyof typeof PROGRAMS, program: string) {
  const { purser, directory, env } = await openSandbox(t);
  const { url } = await openBreaking(t, purser.url, 1);
  const args = language === 'js' ? ['--input-type=module', '-e'] : ['-c'];
  const settings = { cwd: directory, env: { ...env, SVC_BROKER_URL: url } };
  const { stdout } = await run(program, [...args, PROGRAMS[language]], settings);
  const [, key] = /^ConnectionLost (sdk-\S+)\n$/.exec(stdout) ?? [];
  assert(key, stdout);
  const token = env.SVC_BROKER_TOKEN;
  const body = { name: 'child', budget_usd: '0.25', expires_in_seconds: 3600 };
  assert.equal((await purser.ask('POST', '/v1/run/wallets', { token, key, body })).status, 201);
  assert.equal((await purser.budget(token)).delegated_usd, '0.25');
}
