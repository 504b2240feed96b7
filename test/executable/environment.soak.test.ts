import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { installation, run } from '../helper/executable.ts';

test('the master key comes from the environment, a file or the data directory, and the same key makes the same tokens', async (t) => {
  const key = randomBytes(32);
  const secrets = mkdtempSync(join(tmpdir(), 'purser-secret-'));
  t.after(() => rmSync(secrets, { recursive: true, force: true }));
  const keyFile = join(secrets, 'master');
  writeFileSync(keyFile, `${key.toString('base64')}\n`, { mode: 0o600 });

  const purser = installation(t, { env: { PURSER_MASTER_KEY: key.toString('hex') } });
  await (await purser.serve()).stop();
  assert(!existsSync(join(purser.directory, 'master.key')), 'no key of its own');
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '500c');
  const create = ['wallet', 'create', '--account', accounts[0].id, '--name', 'n', '--budget-cents', '100'];
  const { id, agent_token: token } = await purser.json(...create);

  const ask = async (env: Record<string, string>, ...args: string[]) =>
    run(['--data', purser.directory, ...args], { env });
  const same = await ask({ PURSER_MASTER_KEY_FILE: keyFile }, 'wallet', 'token', id);
  assert.equal(same.stdout, `${token}\n`);
  chmodSync(keyFile, 0o644);
  const open = await ask({ PURSER_MASTER_KEY_FILE: keyFile }, 'wallet', 'token', id);
  assert.equal(open.stdout, `${token}\n`, 'a container runtime puts it there like that');
  assert.match(open.stderr, new RegExp(`can be read by other users.*chmod 600 ${keyFile}`));
  chmodSync(keyFile, 0o600);

  const wrong = randomBytes(32).toString('hex');
  for (const args of [['serve'], ['wallet', 'token', id], ['wallet', 'list']]) {
    const { code, stdout, stderr } = await ask({ PURSER_MASTER_KEY: wrong }, ...args);
    assert.deepEqual([code, stdout], [1, ''], stderr);
    assert.match(
      stderr,
      /^The master key is mk_\w+, but this database belongs to mk_\w+\. Give Purser the key.*; if nobody has it any more, run: purser master-key replace --lost$/m,
    );
    assert(!stderr.includes(wrong));
  }
  const short = await ask({ PURSER_MASTER_KEY: 'abc123' }, 'wallet', 'list');
  assert.equal(short.code, 1);
  assert.match(short.stderr, /^ *environment: PURSER_MASTER_KEY: must be 32 bytes/m);
  const absent = await ask({ PURSER_MASTER_KEY_FILE: join(secrets, 'absent') }, 'wallet', 'list');
  assert.equal(absent.code, 1);
  assert.match(absent.stderr, /^ *environment: PURSER_MASTER_KEY_FILE: there is no file .*absent\. Put your copy/m);
  const none = await ask({}, 'wallet', 'list');
  assert.equal(none.code, 1);
  assert(!existsSync(join(purser.directory, 'master.key')), 'a lost key is not replaced by a new one');
});
