import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { STATUS } from '../../src/compute/machine/sftp-fault.ts';
import { OPEN, REQUEST, string, uint32 } from '../../src/compute/machine/sftp-wire.ts';
import { until } from '../helper/waiting.ts';
import { openDirectory, openLocalSession, openWireClient, withMode } from './wire-client.ts';

const PUT = OPEN.write | OPEN.create | OPEN.truncate;
/** What OpenSSH's scp opens a file for. */
const PUT_IN_PLACE = OPEN.write | OPEN.create;

/** A server whose requests to the machine are counted, by verb. */
async function openCounted(t: TestContext) {
  const directory = openDirectory(t);
  const session = openLocalSession(t, { shell: ['dash'], directory });
  const verbs: string[] = [];
  const write = session.stdin.write.bind(session.stdin) as (chunk: Buffer | string) => boolean;
  session.stdin.write = (chunk: Buffer | string) => {
    for (const line of chunk.toString('latin1').split('\n')) {
      const [, verb] = /^(?:[0-9a-f]{32}|-) ([a-z]+)/.exec(line) ?? [];
      if (verb) verbs.push(verb);
    }
    return write(chunk);
  };
  const others: { mark: number | undefined; milliseconds: number } = { mark: 1, milliseconds: 0 };
  const client = await openWireClient(t, session, {
    alone: () => others.mark,
    milliseconds: () => others.milliseconds,
  });
  const at = (name: string) => join(directory, name);
  /** Returns the verbs since the last call. */
  const asked = () => verbs.splice(0).filter((it) => it !== 'close' && it !== 'hello');
  async function put(name: string, content: string, { flags = PUT, mode = 0o644 } = {}) {
    const { handle } = await client.open(at(name), flags, withMode(mode));
    const written = content ? await client.write(handle as Buffer, 0, Buffer.from(content)) : undefined;
    return { written: written?.status, closed: (await client.close(handle as Buffer)).status };
  }
  /** Lists the directory, as clients do before they fetch its files. */
  async function list(): Promise<string[]> {
    const { handle } = await client.path(REQUEST.opendir, directory);
    const { names = [] } = await client.ask(REQUEST.readdir, string(handle as Buffer));
    await client.close(handle as Buffer);
    return names.map(({ name }) => name.toString()).filter((it) => !it.startsWith('.'));
  }
  async function get(name: string): Promise<string | number | undefined> {
    const { handle, status } = await client.open(at(name), OPEN.read);
    if (!handle) return status;
    let content = '';
    for (;;) {
      const { data } = await client.read(handle, content.length, 32_768);
      if (!data) break;
      content += data;
    }
    assert.equal((await client.close(handle)).status, STATUS.ok);
    return content;
  }
  return { client, at, asked, put, list, get, others };
}

const DONE = { written: STATUS.ok, closed: STATUS.ok };

test('a file in a row of files that are written takes one request of the machine', async (t) => {
  for (const flags of [PUT, PUT_IN_PLACE]) {
    const { client, at, asked, put } = await openCounted(t);
    const modes = [0o644, 0o600, 0o666, 0o755, 0o444, 0o4755];
    for (const [index, mode] of modes.entries())
      assert.deepEqual(await put(`file-${index}`, `content ${index}`, { flags, mode }), DONE);
    assert.deepEqual(asked(), ['open', 'write', ...Array(5).fill('fill')]);
    // A write by anyone but root takes the bit that makes a program run as its owner.
    const kept = process.getuid?.() === 0 ? 0o7777 : 0o1777;
    for (const [index, mode] of modes.entries()) {
      assert.equal(readFileSync(at(`file-${index}`), 'utf8'), `content ${index}`);
      assert.equal(statSync(at(`file-${index}`)).mode & 0o7777, mode & kept & ~process.umask());
    }
    // The size that scp sets after an upload is what the file has.
    const { handle = Buffer.alloc(0) } = await client.open(at('sized'), flags, withMode(0o644));
    await client.write(handle, 0, Buffer.from('content'));
    const size = (bytes: number) => Buffer.concat([uint32(1), uint32(0), uint32(bytes)]);
    assert.equal((await client.ask(REQUEST.fsetstat, string(handle), size(7))).status, STATUS.ok);
    assert.deepEqual(asked(), ['fill']);
    assert.equal((await client.ask(REQUEST.fsetstat, string(handle), size(3))).status, STATUS.ok);
    await client.close(handle);
    assert.equal(readFileSync(at('sized'), 'utf8'), 'con');
  }
});

test('in a row too, nothing is called done that is not, and the end of a longer file is cut off', async (t) => {
  const { client, at, put } = await openCounted(t);
  mkdirSync(at('folder'));
  writeFileSync(at('longer'), 'something longer');
  await put('first', 'x');
  const { failure } = STATUS;
  assert.deepEqual(await put('folder', 'x'), { written: failure, closed: failure });
  assert.equal((await client.open(at('folder'), PUT)).status, failure, 'after a fault an open waits for the machine');
  assert.deepEqual(await put('second', 'y'), DONE);
  assert.deepEqual(await put('longer', 'short'), DONE);
  assert.equal(readFileSync(at('longer'), 'utf8'), 'short');
  assert.deepEqual(await put('empty', ''), { written: undefined, closed: STATUS.ok });
  assert.equal(readFileSync(at('empty'), 'utf8'), '');
  rmSync(at('longer'));
  mkdirSync(at('longer'));
  assert.deepEqual(await put('longer', ''), { written: undefined, closed: failure });
});

test('a file that its client takes for open is there for its next request, and soon without one', async (t) => {
  const { client, at, put } = await openCounted(t);
  await put('first', 'x');
  await client.open(at('second'), PUT);
  assert.equal((await client.path(REQUEST.stat, at('second'))).attributes?.size, 0n);
  await put('third', 'x');
  const { handle = Buffer.alloc(0) } = await client.open(at('fourth'), PUT);
  await until('it is there', async () => existsSync(at('fourth')));
  assert.equal((await client.write(handle, 3, Buffer.from('x'))).status, STATUS.ok);
  assert.deepEqual(readFileSync(at('fourth')), Buffer.from('\0\0\0x'));
});

test('small files that are fetched one after another are read together', async (t) => {
  const { at, asked, list, get } = await openCounted(t);
  const names = Array.from({ length: 20 }, (_, index) => `file ${String(index).padStart(2, '0')}`);
  for (const name of names) writeFileSync(at(name), `${name}\n==> ${at('file 03')} <==\n`.repeat(name.length));
  writeFileSync(at('file 05'), '');
  writeFileSync(at('file 07'), Buffer.alloc(100_000, 'x'));
  assert.deepEqual(await list(), names);
  asked();
  for (const name of names) assert.equal(await get(name), readFileSync(at(name), 'utf8'), name);
  const verbs = asked();
  assert.equal(verbs.filter((it) => it === 'several').length, 1);
  assert.equal(verbs.filter((it) => it === 'open').length, 2, 'the first, and a large one');
});

test('what was read together is not used once it may have changed', async (t) => {
  const { client, at, asked, list, get, put, others } = await openCounted(t);
  const names = Array.from({ length: 9 }, (_, index) => `file-${index}`);
  for (const name of names) writeFileSync(at(name), 'listed');
  await list();
  writeFileSync(at('file-2'), 'longer than listed');
  rmSync(at('file-3'));
  assert.equal(await get('file-0'), 'listed');
  assert.equal(await get('file-1'), 'listed');
  assert.equal(await get('file-2'), 'longer than listed');
  assert.equal(await get('file-3'), STATUS.noSuchFile);
  assert.equal(await get('file-4'), 'listed');
  assert.ok(asked().includes('several'));
  writeFileSync(at('file-5'), 'newer!');
  assert.equal((await client.path(REQUEST.setstat, at('file-6'), withMode(0o600))).status, STATUS.ok);
  assert.equal(await get('file-5'), 'newer!', 'a request of the same client that changes something');
  await put('file-6', 'put in');
  assert.equal(await get('file-6'), 'put in');
  writeFileSync(at('file-7'), 'later!');
  others.milliseconds += 301;
  assert.equal(await get('file-7'), 'later!');
});

test('what was read together is not used once anything else has worked in the machine, nor beside it', async (t) => {
  const { at, asked, list, get, others } = await openCounted(t);
  const names = Array.from({ length: 9 }, (_, index) => `file-${index}`);
  for (const name of names) writeFileSync(at(name), 'listed');
  await list();
  assert.deepEqual(await Promise.all(names.slice(0, 3).map(get)), Array(3).fill('listed'));
  assert.ok(asked().includes('several'));
  writeFileSync(at('file-3'), 'newer!');
  others.mark = 2; // A command has begun and ended.
  assert.equal(await get('file-3'), 'newer!');
  assert.equal(await get('file-4'), 'listed');
  writeFileSync(at('file-5'), 'newer!');
  others.mark = undefined; // A session is open.
  assert.equal(await get('file-5'), 'newer!');
  asked();
  assert.equal(await get('file-6'), 'listed');
  assert.deepEqual(asked(), ['open', 'read']);
});

test('a file is read to its end by one request, and what gives less than is asked for is read whole', async (t) => {
  const { at, asked, get } = await openCounted(t);
  writeFileSync(at('file'), 'content');
  assert.equal(await get('file'), 'content');
  assert.deepEqual(asked(), ['open', 'read']);
  assert.equal(await get('../../../../../proc/filesystems'), readFileSync('/proc/filesystems', 'utf8'));
});
