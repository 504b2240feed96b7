import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import test, { type TestContext } from 'node:test';
import { STATUS } from '../../src/compute/machine/sftp-fault.ts';
import { OPEN, REQUEST, uint32 } from '../../src/compute/machine/sftp-wire.ts';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { openServer, testShell } from './sftp-suite.ts';
import { SHELLS, withMode } from './wire-client.ts';

const NOBODY = 65534;

const has = (t: TestContext, shell: string) => shell !== 'busybox' || hasComponent(t, 'busybox');

testShell('bash'); // Dash is in the gate.
if (hasProgram('busybox')) testShell('busybox');
else test('busybox: every test of a shell', (t) => void hasComponent(t, 'busybox'));

for (const shell of Object.keys(SHELLS)) {
  test(`${shell}: what the user inside may not do is not done`, async (t) => {
    if (!hasComponent(t, 'root') || !has(t, shell)) return;
    const it = await openServer(t, shell, { user: NOBODY });
    const { client, at } = it;
    mkdirSync(at('closed'), { mode: 0o700 });
    mkdirSync(at('others'), { mode: 0o755 });
    writeFileSync(at('secret'), 'x', { mode: 0o600 });
    writeFileSync(at('public'), 'x', { mode: 0o644 });
    const { permissionDenied } = STATUS;
    const write = OPEN.write | OPEN.create | OPEN.truncate;
    assert.equal((await client.open(at('secret'), OPEN.read)).status, permissionDenied);
    assert.equal((await client.open(at('public'), write)).status, permissionDenied);
    assert.equal((await client.open(at('public'), OPEN.write)).status, permissionDenied);
    assert.equal((await client.open(at('others/new'), write)).status, permissionDenied);
    assert.equal((await client.path(REQUEST.opendir, at('closed'))).status, permissionDenied);
    assert.equal((await client.path(REQUEST.stat, at('closed/x'))).status, permissionDenied);
    assert.equal((await client.path(REQUEST.mkdir, at('others/x'), uint32(0))).status, permissionDenied);
    assert.equal((await client.path(REQUEST.setstat, at('public'), withMode(0o777))).status, permissionDenied);
    assert.equal((await client.path(REQUEST.remove, '/etc/hostname')).status, permissionDenied);
    assert.equal(readFileSync(at('public'), 'utf8'), 'x');
    assert.equal((await client.open(at('mine'), write)).status, undefined);
  });

  test(`${shell}: a disk that is full is told with the write that does not fit, and what follows works`, async (t) => {
    if (!hasComponent(t, 'root') || !has(t, shell)) return;
    const it = await openServer(t, shell);

    const { client, at } = it;
    mkdirSync(at('small'));
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', at('small')]);
    using _ = { [Symbol.dispose]: () => execFileSync('umount', ['-l', at('small')]) };
    const handle = (await client.open(at('small/file'), OPEN.write | OPEN.create)).handle as Buffer;
    // Full of what a shell would take for requests.
    const line = Buffer.from('0123456789abcdef remove /tmp\n');
    const block = Buffer.alloc(128 * 1024, line);
    const answers = await Promise.all(
      Array.from({ length: 24 }, (_, at) => client.write(handle, at * block.length, block)),
    );
    assert.equal(answers[0]?.status, STATUS.ok);
    assert.equal(answers.at(-1)?.status, STATUS.failure);
    const written = answers.filter((it) => it.status === STATUS.ok).length;
    assert.ok(statSync(at('small/file')).size >= written * block.length, 'what was called written is there');
    assert.equal((await client.close(handle)).status, STATUS.ok);
    assert.equal((await client.path(REQUEST.remove, at('small/file'))).status, STATUS.ok);
    const again = (await client.open(at('small/file'), OPEN.write | OPEN.create)).handle as Buffer;
    assert.equal((await client.write(again, 0, block)).status, STATUS.ok);
    assert.ok(readFileSync(at('small/file')).equals(block));
  });
}
