import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import test from 'node:test';
import { newId } from '../../src/base/id.ts';
import { openBtrfs } from './engines/btrfs.ts';
import { LIST_WRITABLE } from './engines/disk.ts';
import { LXD_PREFIX, lxdSubject, openLxd } from './engines/lxd.ts';
import { ASKINGS, askForSubvolumes, isLacking, MADE, REFUSED } from './engines/subvolume.ts';

test('lxd: on a pool with quotas a lease writes disk_gb, and beside it memory alone; on another doctor warns', async (t) => {
  const btrfs = openBtrfs(t);
  if (!btrfs) return;
  const lxd = await openLxd(t);
  t.after(async () => {
    await lxd?.stop();
    btrfs.close();
  });
  if (!lxd) return;
  await lxd.api.ask('POST', '/1.0/storage-pools', {
    name: 'limited',
    driver: 'btrfs',
    config: { source: btrfs.directory },
  });
  const limits = { cpus: 2, memory_gib: 1, gpus: 0, disk_gb: 1, max_seconds: 3600 };
  const { backend, spec } = lxdSubject(lxd.socket, { pool: 'limited', limits, user: 0 });
  const plain = lxdSubject(lxd.socket, { limits }).backend;
  t.after(() => Promise.all([backend.close(), plain.close()]));
  const diskOf = async ({ doctor }: typeof backend) =>
    (await doctor.check()).find((it) => it.name === 'disk')?.detail ?? '';
  assert.equal(await diskOf(backend), 'disk_gb is enforced by btrfs');
  assert.match(await diskOf(plain), /^Warning: disk_gb may not be enforced: .* driver dir,/);

  const tag = `${LXD_PREFIX}res-${newId('res').slice(4)}`;
  const deadline = Math.floor(Date.now() / 1000) + 600;
  const made = await backend.create({ tag, quote: await backend.quote(spec), deadline });
  assert.ok(made.kind === 'created', JSON.stringify(made));
  const sh = async (command: string) => {
    const { stdout, stderr } = await backend.guest.exec(made.ref, {
      command,
      timeoutSeconds: 60,
      streamBytesMax: 4096,
    });
    return `${stdout}${stderr}`.trim();
  };
  const writable = (await sh(LIST_WRITABLE)).split('\n');
  t.diagnostic(writable.join('; '));
  assert.ok(writable.includes('btrfs directory /'));
  assert.deepEqual(
    writable.filter((it) => it !== 'btrfs directory /' && !it.startsWith('tmpfs directory ')),
    [],
  );
  assert.match(await sh('fallocate -l 900M /tmp/a && fallocate -l 300M /tmp/b'), /quota exceeded/i);
  const deleted = 'exec 3>/tmp/c; rm /tmp/c; fallocate -l 300M /proc/self/fd/3';
  assert.match(await sh(deleted), /quota exceeded/i, 'what is deleted and open counts as well');

  // A subvolume would have no quota. Whoever owns a directory may make one, where nothing refuses the request itself.
  if (process.arch === 'x64') {
    // Where the kernel lacks a way to ask, its program dies, and the shell says so.
    const outside = async (command: string) =>
      execFileSync('sh', ['-c', command], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    const there = await askForSubvolumes(`${btrfs.directory}/outside`, outside);
    const isTried = ASKINGS.map((it, at) => there[at] === MADE || isLacking(it, there[at]));
    assert.ok(!isTried.includes(false), `the programs do what they are for: ${there}`);
    const inside = await askForSubvolumes('/tmp/inside', sh);
    const isRefused = ASKINGS.map(
      (it, at) => inside[at] === REFUSED || (isLacking(it, there[at]) && inside[at] === there[at]),
    );
    assert.ok(!isRefused.includes(false), `${inside}`);
  } else t.diagnostic('the programs that ask for a subvolume are those of amd64');
  await backend.destroy(made.ref);
});
