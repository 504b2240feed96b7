import assert from 'node:assert/strict';
import { readdirSync, rmSync } from 'node:fs';
import test from 'node:test';
import type { StorageOptions } from '../../src/books/storage.ts';
import { UntrustedStorageError } from '../../src/books/storage.ts';
import { openTestServer } from '../helper/server.ts';

const on = (type: string, isAnyAccepted = false): StorageOptions => ({
  readMount: (at) => ({ at, device: '0:45', type, source: 'nas:/export', options: ['rw'] }),
  isAnyAccepted,
});
const warned = (log: string[]) => log.filter((line) => line.includes('"event":"storage.unsafe"'));

test('a file system for whose locks another machine or a program answers is refused by its type, with what to use, before anything is written', async (t) => {
  for (const type of ['nfs', 'nfs4', 'cifs', 'smb3', '9p', 'virtiofs', 'ceph', 'glusterfs', 'fuse.sshfs', 'fuse']) {
    let left: string[] = [];
    const storage = on(type);
    const { readMount } = storage;
    storage.readMount = (directory) => {
      left = readdirSync(directory);
      t.after(() => rmSync(directory, { recursive: true }));
      return readMount(directory);
    };
    await assert.rejects(openTestServer(t, { storage }), (error: Error) => {
      assert(error instanceof UntrustedStorageError, type);
      assert.match(error.message, /is on \S+ \(nas:\/export\), .*ext4 or xfs .*DRBD.*--unsafe-storage/);
      return true;
    });
    assert(!left.includes('purser.lock'), `${type}: ${left}`);
  }
});

test('accepted all the same, it is served, and the log and readyz say so', async (t) => {
  const purser = await openTestServer(t, { storage: on('nfs4', true) });
  const { status, body } = await purser.ask('GET', '/readyz');
  assert.equal(status, 200);
  assert.match(body.unsafe_storage, /is on nfs4 \(nas:\/export\), a network file system/);
  assert.equal(warned(purser.log).length, 1);
});

test('memory and a container’s layer are served with a warning; a disk, also one that FUSE drives, without a word', async (t) => {
  for (const [type, warnings] of [
    ['tmpfs', 1],
    ['overlay', 1],
    ['ext4', 0],
    ['fuseblk', 0],
  ] as const) {
    const purser = await openTestServer(t, { storage: on(type) });
    assert.deepEqual((await purser.ask('GET', '/readyz')).body, { ready: true }, type);
    assert.equal(warned(purser.log).length, warnings, type);
  }
});
