import assert from 'node:assert/strict';
import { type Duplex, duplexPair } from 'node:stream';
import test, { type TestContext } from 'node:test';
import type { LxdApi } from '../../src/compute/engines/lxd/api.ts';
import { diskSize } from '../../src/compute/engines/lxd/disk-size.ts';
import { filesAmong } from '../../src/compute/engines/lxd/sftp.ts';
import { STATUS } from '../../src/compute/machine/sftp-fault.ts';
import {
  answer,
  createPacketReader,
  packet,
  REQUEST,
  RESPONSE,
  readFields,
  uint32,
} from '../../src/compute/machine/sftp-wire.ts';

/** What a tenant can leave on a disk, and what a broken LXD can answer, by a server of SFTP that has both. */

const DIRECTORY = 0o040755;
const FILE = 0o100644;
const LINK = 0o120777;
const PIPE = 0o010644;
const BLOCK = 4096;

type File = { name: string; mode: number; size?: number; links?: number };
/** Returns the parts of a directory as they are sent, which may have no end; undefined where there is none. */
type Tree = (directory: string) => Iterable<File[]> | undefined;

const attributesOf = ({ mode, size = 0 }: File) => ({ mode, size: BigInt(size), owner: { uid: 0, gid: 0 } });
const namedAs = (it: File) => ({
  name: Buffer.from(it.name, 'latin1'),
  longName: Buffer.from(`?rwxr-xr-x    ${it.links ?? 1} 0        0               1 Jan  1 00:00 ${it.name}`, 'latin1'),
  attributes: attributesOf(it),
});

/** Opens a server of a tree, whose `opened` are the directories that were read. `say` may answer a request in its place. */
function openServer(tree: Tree, say?: (kind: number) => Buffer | 'nothing' | undefined) {
  const opened: string[] = [];

  async function serve(theirs: Duplex): Promise<void> {
    const packets = createPacketReader(theirs);
    const listings = new Map<string, Iterator<File[]>>();
    for (let received = await packets.next(); received; received = await packets.next()) {
      const fields = readFields(received);
      const kind = fields.byte();
      const said = say?.(kind);
      if (said === 'nothing') continue;
      if (said) theirs.write(said);
      else if (kind === REQUEST.init) theirs.write(answer.version({}));
      else theirs.write(reply(kind, fields.uint32(), fields.string().toString('latin1'), listings));
    }
  }
  function reply(kind: number, id: number, path: string, listings: Map<string, Iterator<File[]>>): Buffer {
    const absent = () => answer.status(id, STATUS.noSuchFile, 'no such file');
    if (kind === REQUEST.opendir) {
      const parts = tree(path);
      if (!parts) return absent();
      opened.push(path);
      listings.set(path, parts[Symbol.iterator]());
      return answer.handle(id, Buffer.from(path, 'latin1'));
    }
    if (kind === REQUEST.readdir) {
      const { value, done } = listings.get(path)?.next() ?? { done: true };
      return done ? answer.status(id, STATUS.endOfFile, 'EOF') : answer.names(id, (value as File[]).map(namedAs));
    }
    if (kind === REQUEST.lstat) {
      const at = path.lastIndexOf('/') + 1;
      const file = [...(tree(path.slice(0, at)) ?? [])].flat().find((it) => it.name === path.slice(at));
      return file ? answer.attributes(id, attributesOf(file)) : absent();
    }
    return answer.status(id, STATUS.ok, '');
  }
  const upgrade = async () => {
    const [ours, theirs] = duplexPair();
    void serve(theirs);
    return ours;
  };
  return { opened, lxd: { upgrade } as unknown as LxdApi };
}

const size = ({ lxd }: { lxd: LxdApi }, max = Number.POSITIVE_INFINITY) => diskSize(lxd, 'it', max);
/** Yields the same part for ever. */
function* endless(part: (round: number) => File[]): Generator<File[]> {
  for (let round = 0; ; round++) yield part(round);
}

test('a disk is counted in blocks, a file of several names once, and no link is followed', async () => {
  const server = openServer((directory) => {
    if (directory === '/')
      return [
        [
          { name: '.', mode: DIRECTORY },
          { name: '..', mode: DIRECTORY },
          { name: 'a\xff\n', mode: DIRECTORY },
        ],
        [
          { name: 'out', mode: LINK, size: 1 },
          { name: 'empty', mode: FILE },
          { name: 'pipe', mode: PIPE },
        ],
      ];
    if (directory === '/a\xff\n/')
      return [
        [
          { name: 'big', mode: FILE, size: 5 * 2 ** 32 + 1 },
          { name: 'one', mode: FILE, size: 3 * BLOCK, links: 2 },
          { name: 'two', mode: FILE, size: 3 * BLOCK, links: 2 },
        ],
      ];
    return undefined;
  });
  assert.equal(await size(server), 4 * BLOCK + 5 * 2 ** 32 + BLOCK + 3 * BLOCK);
  assert.deepEqual(server.opened, ['/', '/a\xff\n/']);
});

test('names are not free: a file that has as many as it can is counted by them', async () => {
  const names = Array.from({ length: 128 }, (_, at) => ({ name: `name${at}`, mode: FILE, links: 65_535 }));
  assert.equal(await size(openServer(() => [names])), 128 * 1024);
});

test('what has no end is not read to its end', async () => {
  const files = openServer(() => endless(() => [{ name: 'x', mode: FILE, size: BLOCK, links: 65_535 }]));
  assert.ok((await size(files, 1024 ** 2)) <= 1024 ** 2 + BLOCK);
  const deep = openServer(() => [[{ name: 'd', mode: DIRECTORY }]]);
  assert.ok((await size(deep, 1024 ** 2)) <= 1024 ** 2 + BLOCK);
  assert.equal(deep.opened.length, 1024 ** 2 / BLOCK + 1);
  const wide = openServer(() =>
    endless((round) => Array.from({ length: 128 }, (_, at) => ({ name: `${round}.${at}`, mode: DIRECTORY }))),
  );
  await assert.rejects(size(wide), /more than 100000 directories/);
});

test('an LXD that answers nothing, too much or nonsense is waited for no longer than the limit', async (t: TestContext) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const asked = Promise.withResolvers<void>();
  const silent = size(
    openServer(
      () => [],
      (kind) => {
        if (kind !== REQUEST.opendir) return undefined;
        asked.resolve();
        return 'nothing';
      },
    ),
  );
  silent.catch(() => {});
  await asked.promise;
  t.mock.timers.tick(199_999);
  t.mock.timers.tick(1);
  await assert.rejects(silent, /not done within 200 s/);
  const long = Buffer.concat([uint32(0x7fffffff), Buffer.of(RESPONSE.handle)]);
  await assert.rejects(
    size(
      openServer(
        () => [],
        (kind) => (kind === REQUEST.opendir ? long : undefined),
      ),
    ),
    /a packet has 2147483647 bytes/,
  );
  const short = packet(RESPONSE.name, uint32(2), uint32(9));
  const odd = (wrong: Buffer) =>
    openServer(
      () => [[]],
      (kind) => (kind === REQUEST.readdir ? wrong : undefined),
    );
  await assert.rejects(size(odd(short)), /in the middle of a field/);
  await assert.rejects(size(odd(packet(RESPONSE.data, uint32(2)))), /packet 103/);
  await assert.rejects(size(openServer(() => undefined)), /no such file/);
});

test('only plain files are read out of a disk that a tenant has had', async () => {
  const { lxd } = openServer((directory) =>
    directory === '/etc/'
      ? [
          [
            { name: 'plain', mode: FILE },
            { name: 'pipe', mode: PIPE },
            { name: 'link', mode: LINK },
            { name: 'd', mode: DIRECTORY },
          ],
        ]
      : undefined,
  );
  const paths = ['/etc/pipe', '/etc/link', '/etc/plain', '/etc/d', '/etc/none', '/nowhere/x'];
  assert.deepEqual(await filesAmong(lxd, 'it', paths), ['/etc/plain']);
});
