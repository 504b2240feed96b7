import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { TestServerOptions } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { openLocalLease } from '../http/trees-shared.ts';

// The examples of docs/sdk.md, and a wallet that they can spend.

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));
export const run = promisify(execFile);

/** What each block of the page prints, in its order. */
export const PRINTS: [language: 'python' | 'js', prints: RegExp][] = [
  ['python', /^10\.00 [\w-]+\nhello from the project\n0\nhttp:\/\/8888-\S+\n0\.25 ANTHROPIC_AUTH_TOKEN\n$/],
  ['python', /^3 in\n me\n\nONE\nTWO\n\n$|^3 in\n me\n\nONE\n\nTWO\n\n$/],
  ['python', /^hello from the project\n\n$/],
  ['python', /^137 begun\n\n$/],
  ['python', /^0\.25\n$/],
  ['python', /^refused invalid_request\n$/],
  ['js', /^10\.00\nhello from the project\n0\n$|^\d+\.\d+\nhello from the project\n0\n$/],
  ['js', /^$/],
  ['js', /^0\.25 http:\S+\/v1\/router\n$/],
  ['js', /^true insufficient_funds 402\n$/],
];

export const blocks = [
  ...readFileSync(join(ROOT, 'docs/sdk.md'), 'utf8').matchAll(/^```(python|js)\n([\s\S]*?)^```$/gm),
].map(([, language, code], index) => ({ language, code: code as string, prints: PRINTS[index]?.[1] as RegExp }));

/** The interpreters of this machine from Python 3.9 on: of each minor version one, by its version, the oldest first. */
export async function pythons(): Promise<[version: string, program: string][]> {
  const versions = join(homedir(), '.pyenv/versions');
  const kept = existsSync(versions) ? readdirSync(versions).map((it) => join(versions, it, 'bin/python')) : [];
  const found = new Map<number, [version: string, program: string]>();
  for (const it of ['python3', '/usr/bin/python3', ...kept])
    try {
      const { stdout } = await run(it, ['-c', 'import sys; print("%d.%d.%d" % sys.version_info[:3])']);
      const [major = 0, minor = 0] = stdout.split('.').map(Number);
      if (major === 3 && minor >= 9 && !found.has(minor)) found.set(minor, [stdout.trim(), it]);
    } catch {} // It is not there.
  return [...found].sort(([a], [b]) => a - b).map(([, it]) => it);
}

/** A wallet of ten dollars, and a directory with the clients as the server gives them. */
export async function openSandbox(t: TestContext, change?: TestServerOptions['change']) {
  const { purser, token } = await openLocalLease(t, { env: {}, ...(change ? { change } : {}) });
  const { token: own } = await purser.openWallet();
  const directory = mkdtempSync(join(tmpdir(), 'purser-sdk-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  for (const name of ['purser.py', 'purser.mjs', 'purser.d.mts']) {
    const { status, text } = await purser.ask('GET', `/sdk/${name}`);
    assert.equal(status, 200);
    writeFileSync(join(directory, name), text);
  }
  mkdirSync(join(directory, 'project'));
  writeFileSync(join(directory, 'project/main.sh'), 'echo hello from the project\n');
  const env = { PATH: process.env.PATH, SVC_BROKER_URL: purser.url, SVC_BROKER_TOKEN: own };
  return { purser, token, directory, env };
}

export async function runBlocks(t: TestContext, language: 'python' | 'js', program: string) {
  const { purser, directory, env } = await openSandbox(t);
  for (const [index, block] of blocks.entries()) {
    if (block.language !== language) continue;
    const file = join(directory, language === 'js' ? 'block.mjs' : 'block.py');
    writeFileSync(file, block.code);
    const { token } = await purser.openWallet();
    const { stdout, stderr } = await run(program, [file], { cwd: directory, env: { ...env, SVC_BROKER_TOKEN: token } });
    assert.match(stdout, block.prints, `block ${index}: ${block.code}${stderr}`);
    await until('all are stopped, and what was delegated is back', async () => {
      const { body } = await purser.ask('GET', '/v1/compute/list', { token });
      const { holds, delegated_usd: delegated } = await purser.budget(token);
      const isRunning = body.resources.some((it: { status: string }) => it.status === 'running');
      return !isRunning && holds.length === 0 && delegated === '0.00';
    });
  }
  assert.deepEqual(purser.problems(), []);
}
