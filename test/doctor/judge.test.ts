import assert from 'node:assert/strict';
import test from 'node:test';
import { judgeEngines } from '../../src/doctor/compute.ts';
import { type Disk, judgeFileSystem, judgeFsync, judgeSpace } from '../../src/doctor/disk.ts';
import { judgeUncertain } from '../../src/doctor/doctor.ts';
import { judgeLeases } from '../../src/doctor/leases.ts';
import { judgeClock, judgeTools } from '../../src/doctor/machine.ts';
import { mountOf } from '../../src/files/mount.ts';
import { findPrograms } from '../../src/files/programs.ts';

const MOUNTINFO = [
  '27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro',
  '40 27 0:45 / /srv/a\\040b rw,nosuid shared:20 master:1 - nfs4 nas:/export rw,vers=4.2',
  '41 27 0:46 / /srv/smb rw - cifs //nas/share rw,vers=3.1.1',
  '42 27 0:47 / /srv/host rw - 9p hostshare rw,trans=virtio',
  '43 27 0:48 / /srv/sshfs rw - fuse.sshfs root@nas:/ rw,user_id=0',
  '44 27 0:49 / /srv/layer rw - overlay overlay rw,lowerdir=/l,upperdir=/u',
  '45 27 0:50 / /srv/memory rw - tmpfs tmpfs rw,size=8192k',
  '46 27 8:17 / /srv/fast rw - ext4 /dev/sdb1 rw,nobarrier',
  '47 27 8:33 / /srv/old rw - ext4 /dev/sdc1 rw',
  '48 47 0:51 / /srv/old rw - nfs nas:/later rw',
  '49 27 8:49 / /srv/broken ro,relatime - xfs /dev/sdd1 rw',
  '50 27 8:65 / /srv/stick rw - exfat /dev/sde1 rw',
  '51 27 0:52 / /srv/new rw - novelfs none rw',
  '',
].join('\n');
const at = (path: string) => mountOf(MOUNTINFO, path);
const judged = (path: string) => judgeFileSystem(path, at(path));

test('the mount of a path is the deepest above it, and the latest of those on one point', () => {
  assert.deepEqual(at('/srv/a b/purser'), {
    at: '/srv/a b',
    device: '0:45',
    type: 'nfs4',
    source: 'nas:/export',
    options: ['rw', 'nosuid', 'rw', 'vers=4.2'],
  });
  assert.equal(at('/srv/a b')?.type, 'nfs4');
  assert.equal(at('/srv/a bc')?.type, 'ext4', 'a name that only begins like a mount is not on it');
  assert.equal(at('/srv/old/data')?.source, 'nas:/later');
  assert.equal(mountOf('', '/srv'), undefined);
});

test('books are not trusted to a network, a program, memory or a read-only mount, and each says what to do', () => {
  for (const path of ['/srv/a b', '/srv/smb', '/srv/host', '/srv/old'])
    assert.throws(() => judged(path), /a network file system.* Move it to a local disk\.$/, path);
  assert.throws(() => judged('/srv/sshfs'), /on fuse\.sshfs \(root@nas:\/\), which a program serves.* Move it/);
  assert.throws(() => judged('/srv/memory'), /which is memory.* Move it to a disk\.$/);
  assert.throws(() => judged('/srv/broken'), /mounted read-only.*mount it writable\.$/);
  assert.match(judged('/srv/layer'), /^Warning: .*gone with the container\. Put the data directory on a volume\.$/);
  assert.match(judged('/srv/stick'), /^Warning: .*no owners.* Move it/);
  assert.match(judged('/srv/new'), /^Warning: .*Purser does not know.* Move it/);
  assert.match(judgeFileSystem('/srv', undefined), /^Warning: the kernel does not say/);
  assert.equal(judged('/home/purser'), '/home/purser is on ext4 (/dev/vda)');
});

test('what a sync promises: a mount without barriers, a memory, a cache and a slow disk are told apart', () => {
  const disk: Disk = { name: 'sda', isTurning: false, isFlushed: true };
  const turning = { ...disk, isTurning: true };
  const home = at('/home');
  assert.match(
    judgeFsync([0.1, 0.2, 9], home, disk),
    /^fsync takes 0\.200 ms .*at most 9\.0 ms\); the cache of sda is/,
  );
  assert.match(judgeFsync([1], home, { ...disk, isFlushed: false }), /sda says it has no volatile cache/);
  assert.match(judgeFsync([1], home, undefined), /ms\)\. Whether a disk keeps its word/);
  assert.throws(
    () => judgeFsync([8], at('/srv/fast'), disk),
    /mounted with nobarrier.* Mount it without that option\.$/,
  );
  assert.throws(() => judgeFsync([0.002], home, disk), /no disk is that fast/);
  assert.match(judgeFsync([0.3], home, turning), /^Warning: .*faster than sda can turn.*battery/);
  assert.match(judgeFsync([8], home, turning), /^fsync takes/);
  assert.match(judgeFsync([80], home, disk), /^Warning: .*waits that long/);
});

test('what is free is measured by what settlements need beside their reserve', () => {
  const MIB = 1024 * 1024;
  const large = { bytes: 1000 * MIB, files: 1000, freeFiles: 900 };
  const space = (freeMib: number, reserveMib: number, over: object = {}) =>
    judgeSpace('/data', { ...large, freeBytes: freeMib * MIB, reserveBytes: reserveMib * MIB, ...over });
  assert.equal(space(300, 16), '300 MiB free, and 16 MiB set aside for settlements');
  assert.match(space(4, 16), /^Warning: 4 MiB free, .*may fill up soon/);
  assert.throws(() => space(3, 16), /settlements need 4 MiB, so nothing new is begun\. Free some/);
  assert.throws(() => space(19, 0), /settlements need 20 MiB/);
  assert.match(space(11, 0, { bytes: 64 * MIB }), /^Warning: 11 MiB/, 'a small disk has a small reserve');
  assert.throws(() => space(300, 16, { freeFiles: 3 }), /inodes/);
  assert.equal(space(300, 0, { files: 0, freeFiles: 0 }), '300 MiB free', 'btrfs does not count files');
});

test('a clock in doubt is a fault, unless a time service vouches for it; one that nobody keeps right is a warning', () => {
  const leap = { direction: 'behind', seconds: 7260 } as const;
  for (const isSynced of [false, undefined])
    assert.throws(
      () => judgeClock(leap, isSynced),
      /^Error: The clock of this machine is 2 hours behind the newest time in these books, .* If it is right, stop the server and start it once with --accept-clock\.$/,
    );
  assert.match(judgeClock(leap, true), /^believed: a time service/);
  assert.equal(judgeClock(undefined, undefined), 'not ahead of the books and not behind them');
  assert.match(judgeClock(undefined, true), /synchronized$/);
  assert.match(judgeClock(undefined, false), /^Warning: .* Run a time service/);
});

test('without another program on the PATH there is nothing to say', async () => {
  assert.deepEqual(findPrograms('sqlite3', ['/nowhere']), []);
  assert.equal(await judgeTools(() => []), 'no sqlite3 and no litestream on the PATH');
});

test('a policy resolves what is unknown of a model, and never what is unknown of a lease', () => {
  const router = { upstreams: [], models: [], uncertain: { after_seconds: 900, policy: 'charge' } } as never;
  const lease = { id: 'op_1', resourceId: 'res_1', uncertainAt: 1000, subject: 'one', usage: null };
  const model = { id: 'op_2', resourceId: null, uncertainAt: 2000, subject: 'chat', usage: null };
  assert.equal(judgeUncertain([], router, 5000), 'none');
  assert.match(
    judgeUncertain([lease], router, 5000),
    /^oldest of a lease op_1; what its backend shows will resolve it/,
  );
  assert.match(
    judgeUncertain([lease, model], router, 2900),
    /op_2; its policy will resolve it; oldest of a lease op_1/,
  );
  assert.throws(() => judgeUncertain([lease, model], router, 2961), /op_2 has waited 961 s for its policy/);
});

test('a live lease past its end is a fault with its backend and its error; one whose steps fail is warned of', () => {
  const lease = {
    id: 'res_1',
    slot: 'provider_one',
    backend: 'docker',
    readyBy: 1300,
    readyAt: 1010,
    expiresAt: 4600,
    attempts: 0,
    lastError: null,
    quarantinedAt: null,
    engine: null,
    unreachableSince: null,
  };
  assert.equal(judgeLeases([], 5000), 'none is live');
  assert.equal(judgeLeases([lease], 4900), '1 live, none of them past its end');
  const failing = { ...lease, attempts: 3, lastError: 'connect ECONNREFUSED.' };
  assert.match(
    judgeLeases([lease, failing], 4900),
    /^Warning: 1 of 2 live leases .*: res_1 of provider_one \(docker\): connect ECONNREFUSED\. It is asked/,
  );
  assert.throws(
    () => judgeLeases([{ ...lease, id: 'res_2', expiresAt: 4800 }, failing], 5200),
    /ended 10 minutes ago.* cost money: res_1 of provider_one \(docker\): connect ECONNREFUSED\. In all 2 are late\./,
  );
  assert.throws(() => judgeLeases([{ ...lease, readyAt: null }], 1700), /ended 7 minutes ago/, 'it was never ready');
  assert.equal(
    judgeLeases([{ ...lease, quarantinedAt: 4000 }], 9000),
    'none is live',
    'those are the report-only state',
  );
  const away = { ...lease, id: 'res_3', engine: 'docker AB:CD', unreachableSince: 4000, attempts: 9 };
  assert.match(
    judgeLeases([lease, away], 4500),
    /^Warning: 1 of 2 live leases are unreachable: .* on docker AB:CD, .*purser resource abandon res_3 /,
  );
  assert.match(judgeLeases([away], 9000), /^Warning: 1 of 1/, 'it ended at its own deadline, as far as is known');
  assert.throws(() => judgeLeases([lease, away], 9000), /should have ended/, 'that of the engine that answers is late');
});

test('engines at two addresses that say that they are one are told of; a backend of two slots is not', () => {
  const one = { slotPath: 'provider_one', identity: 'docker A', address: 'unix:///run/docker.sock' };
  assert.deepEqual(judgeEngines([one, { ...one, slotPath: 'provider_three' }, { ...one, identity: 'docker B' }]), []);
  const [found] = judgeEngines([one, { ...one, slotPath: 'provider_three', address: 'tcp://box:2376' }]);
  assert.match(
    found?.detail ?? '',
    /^Warning: provider_one \(unix:.*\) and provider_three \(tcp:.*\) answer with one identity \(docker A\)/,
  );
});
