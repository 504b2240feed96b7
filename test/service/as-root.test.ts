import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import http from 'node:http';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { putFile } from '../../src/service/roots-own.ts';
import { EXECUTABLE } from '../helper/executable.ts';
import { whenRead } from '../helper/listener.ts';

// What root runs, where the service or another user would have it do something else.

const NOBODY = 65534;
const isRoot = process.getuid?.() === 0;
const skip = isRoot ? false : 'root alone can be misled here';

function directoryOf(t: TestContext, parent = tmpdir()): string {
  const directory = mkdtempSync(join(parent, '.purser-as-root-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** Runs the executable and returns what it says, and its exit code. */
async function purser(args: string[], env: NodeJS.ProcessEnv = {}) {
  const { PATH, HOME } = process.env;
  const child = spawn(EXECUTABLE, args, { env: { PATH, HOME, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  const said = { stdout: '', stderr: '' };
  for (const it of ['stdout', 'stderr'] as const)
    child[it].on('data', (chunk) => {
      said[it] += chunk;
    });
  const [code] = await once(child, 'close');
  return { ...said, code };
}

/** Answers on the socket of a data directory as a server that an attacker has taken over. */
async function answerIn(t: TestContext, directory: string): Promise<void> {
  writeFileSync(join(directory, 'purser.db'), '');
  const env = { SVC_BROKER_URL: 'http://127.0.0.1:9', SVC_BROKER_TOKEN: 'svc_agent_x', PURSER_MISLED: 'yes' };
  const wallet = { id: 'wal_1', expires_at: null, used_usd: '0.00', budget_usd: '1.00', env };
  const answers: Record<string, unknown> = {
    'account.list': { accounts: [{ id: 'acct_1' }] },
    'wallet.create': wallet,
    'wallet.gateway-key': { api_key: 'svc_router_x', base_url: 'http://127.0.0.1:9', model: null },
    'wallet.close': wallet,
  };
  const server = http.createServer(
    whenRead((_, response, body) => {
      const { name } = JSON.parse(body.toString());
      response.end(JSON.stringify({ value: answers[name] }));
    }),
  );
  await once(server.listen(join(directory, 'purser.sock')), 'listening');
  t.after(() => server.close());
}

test('a program of `purser run` gets the two variables of its wallet, and no other that the server names', async (t) => {
  const directory = directoryOf(t);
  await answerIn(t, directory);
  const { stdout, stderr } = await purser(['--data', directory, 'run', '--budget', '1.00', '--', 'env']);
  assert.match(stdout, /^SVC_BROKER_TOKEN=svc_agent_x$/m, stderr);
  assert.doesNotMatch(stdout, /PURSER_MISLED/);
});

test("root's `purser run` asks no server in another user's directory", { skip }, async (t) => {
  const directory = directoryOf(t);
  await answerIn(t, directory);
  chownSync(directory, NOBODY, NOBODY);
  const { code, stdout, stderr } = await purser(['--data', directory, 'run', '--budget', '1.00', '--', 'env']);
  assert.equal(stdout, '');
  assert.match(stderr, /belongs to user 65534/);
  assert.equal(code, 4);
});

test("root imports prices as the service's user where the settings are beside the books", { skip }, async (t) => {
  const top = directoryOf(t);
  chmodSync(top, 0o755);
  const at = (name: string) => join(top, name);
  const settings = `router:
  upstreams: [{ name: u, base_url: "http://127.0.0.1:9/v1" }]
  models: [{ id: m, upstream: u, context_length: 1000, max_output_tokens: 100, pricing_per_million: { prompt: 1, completion: 1 } }]
`;
  writeFileSync(at('of-root.yaml'), settings, { mode: 0o644 });
  writeFileSync(
    at('list.json'),
    JSON.stringify({ m: { mode: 'chat', input_cost_per_token: 2e-6, output_cost_per_token: 3e-6 } }),
  );
  mkdirSync(at('data'));
  symlinkSync(at('of-root.yaml'), at('data/purser.yaml'));
  chownSync(at('data'), NOBODY, NOBODY);
  mkdirSync(at('bin'));
  const shown = `LoadState=loaded\\nUser=nobody\\nGroup=nogroup\\nSupplementaryGroups=\\nEnvironment=PURSER_DATA=${at('data')}\\n`;
  writeFileSync(at('bin/systemctl'), `#!/bin/sh\nprintf '${shown}'\n`, { mode: 0o755 });
  const said = await purser(['models', 'import', at('list.json'), '--yes'], {
    PATH: `${at('bin')}:${process.env.PATH}`,
  });
  assert.match(said.stderr, /EACCES/, said.stdout);
  assert.equal(readFileSync(at('of-root.yaml'), 'utf8'), settings);
});

test('first settings never replace what appears while they are made', { skip }, async (t) => {
  const file = join(directoryOf(t, homedir()), 'purser.yaml');
  assert.equal(putFile(file, 'first', { mode: 0o640, keep: true }), true);
  assert.equal(putFile(file, 'second', { mode: 0o640, keep: true }), false);
  assert.equal(readFileSync(file, 'utf8'), 'first');
  assert.deepEqual(readdirSync(join(file, '..')), ['purser.yaml'], 'nothing is left over');
});
