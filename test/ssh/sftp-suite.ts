import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { STATUS } from '../../src/compute/machine/sftp-fault.ts';
import { OPEN, REQUEST, string, uint32 } from '../../src/compute/machine/sftp-wire.ts';
import { randomFrom, SEED } from '../helper/random.ts';
import { openDirectory, openLocalSession, openWireClient, SHELLS, withMode } from './wire-client.ts';

/** A server in a directory of its own, behind one of the shells that machines have. */
export async function openServer(t: TestContext, shell: string, options: { user?: number; software?: string } = {}) {
  const directory = openDirectory(t);
  const { user, software } = options;
  if (user !== undefined) execFileSync('chown', [String(user), directory]);
  const session = openLocalSession(t, {
    shell: SHELLS[shell] as string[],
    directory,
    ...(user === undefined ? {} : { user }),
  });
  const client = await openWireClient(t, session, software === undefined ? {} : { software });
  return { directory, session, client, at: (name: string) => join(directory, name) };
}

/** The tests of a shell that machines have, as whoever runs them. */
export function testShell(shell: string): void {
  test(`${shell}: whatever is written anywhere is read back, step by step like the model`, async (t) => {
    t.diagnostic(`seed ${SEED}`);
    const it = await openServer(t, shell);
    const { client, at } = it;
    const random = randomFrom(SEED);
    const below = (max: number) => Math.floor(random() * max);
    let model = Buffer.alloc(0);
    const path = at('file');
    const { handle = Buffer.alloc(0) } = await client.open(path, OPEN.read | OPEN.write | OPEN.create);
    for (let step = 0; step < 80; step++) {
      const kind = below(10);
      // Most go on where the last ended, as clients do; the others go anywhere, beyond the end too.
      const offset = kind < 3 ? model.length : below(model.length + 200_000);
      if (kind < 6) {
        const pieces = Array.from({ length: 1 + below(4) }, () => {
          const piece = Buffer.alloc(1 + below(70_000));
          for (let byte = 0; byte < piece.length; byte++) piece[byte] = below(256);
          return piece;
        });
        let end = offset;
        const answers = pieces.map((piece) => {
          const from = end;
          end += piece.length;
          return client.write(handle, from, piece);
        });
        for (const { status, message } of await Promise.all(answers)) assert.equal(status, STATUS.ok, message);
        const grown = Buffer.alloc(Math.max(model.length, end));
        model.copy(grown);
        Buffer.concat(pieces).copy(grown, offset);
        model = grown;
      } else if (kind < 9) {
        const length = 1 + below(131_072);
        const { data, status } = await client.read(handle, offset, length);
        const expected = model.subarray(offset, offset + length);
        if (expected.length === 0) assert.equal(status, STATUS.endOfFile);
        else assert.ok(data?.equals(expected), `step ${step}: ${length} bytes at ${offset} of ${model.length}`);
      } else {
        const size = below(model.length + 1000);
        const attributes = Buffer.concat([uint32(1), Buffer.alloc(4), uint32(size)]);
        assert.equal((await client.ask(REQUEST.fsetstat, string(handle), attributes)).status, STATUS.ok);
        const cut = Buffer.alloc(size);
        model.copy(cut);
        model = cut;
      }
      const { attributes } = await client.ask(REQUEST.fstat, string(handle));
      assert.equal(Number(attributes?.size), model.length, `step ${step}`);
    }
    assert.equal((await client.close(handle)).status, STATUS.ok);
    assert.ok(readFileSync(path).equals(model));
  });

  test(`${shell}: what a file may be opened for and how is kept`, async (t) => {
    const it = await openServer(t, shell);
    const { client, at } = it;
    const { read, write, append, create, truncate, exclusive } = OPEN;
    const status = async (path: string, flags: number) => {
      const { handle, status: said } = await client.open(path, flags);
      if (handle) await client.close(handle);
      return said;
    };
    assert.equal(await status(at('none'), read), STATUS.noSuchFile);
    assert.equal(await status(at('none'), write), STATUS.noSuchFile);
    assert.equal(await status(at('none/file'), write | create), STATUS.noSuchFile);
    assert.equal(await status(at(''), read), STATUS.failure, 'a directory is no file');
    assert.equal(await status(at('none'), 0), STATUS.badMessage);
    assert.equal(existsSync(at('none')), false, 'nothing was made');

    assert.equal(await status(at('new'), write | create | exclusive), undefined);
    assert.equal(await status(at('new'), write | create | exclusive), STATUS.failure);
    writeFileSync(at('new'), 'content');
    assert.equal(await status(at('new'), write | create | exclusive | truncate), STATUS.failure);
    assert.equal(readFileSync(at('new'), 'utf8'), 'content');
    assert.equal(await status(at('new'), write | create), undefined);
    assert.equal(readFileSync(at('new'), 'utf8'), 'content', 'opening alone changes nothing');

    const appended = (await client.open(at('new'), write | append)).handle as Buffer;
    await client.write(appended, 0, Buffer.from(' and'));
    await client.write(appended, 0, Buffer.from(' more'));
    assert.equal((await client.read(appended, 0, 10)).status, STATUS.permissionDenied);
    await client.close(appended);
    assert.equal(readFileSync(at('new'), 'utf8'), 'content and more');

    const emptied = (await client.open(at('new'), write | truncate)).handle as Buffer;
    assert.equal(readFileSync(at('new'), 'utf8'), '');
    await client.write(emptied, 3, Buffer.from('x'));
    await client.close(emptied);
    assert.deepEqual(readFileSync(at('new')), Buffer.from('\0\0\0x'));

    const readOnly = (await client.open(at('new'), read)).handle as Buffer;
    assert.equal((await client.write(readOnly, 0, Buffer.from('y'))).status, STATUS.permissionDenied);
    const writeOnly = (await client.open(at('new'), write)).handle as Buffer;
    assert.equal((await client.read(writeOnly, 0, 1)).status, STATUS.permissionDenied);
    assert.deepEqual(readFileSync(at('new')), Buffer.from('\0\0\0x'));
    assert.equal((await client.close(readOnly)).status, STATUS.ok);
    assert.equal((await client.close(readOnly)).status, STATUS.failure, 'a handle is closed once');
  });

  test(`${shell}: a pipe, a device and a socket are not waited for`, async (t) => {
    const it = await openServer(t, shell);
    const { client, at } = it;
    execFileSync('mkfifo', [at('pipe')]);
    for (const flags of [OPEN.read, OPEN.write, OPEN.write | OPEN.create | OPEN.truncate])
      assert.equal((await client.open(at('pipe'), flags)).status, STATUS.failure);
    assert.equal((await client.open('/dev/zero', OPEN.read)).status, STATUS.failure);
    assert.equal((await client.path(REQUEST.lstat, at('pipe'))).attributes?.mode, statSync(at('pipe')).mode);
  });

  test(`${shell}: a new file has the mode that is asked for, less what the machine withholds`, async (t) => {
    const it = await openServer(t, shell);
    const { client, at } = it;
    const make = async (name: string, mode: number) => {
      const { handle } = await client.open(at(name), OPEN.write | OPEN.create | OPEN.truncate, withMode(mode));
      assert.equal((await client.write(handle as Buffer, 0, Buffer.from('it can be written'))).status, STATUS.ok);
      await client.close(handle as Buffer);
      return statSync(at(name)).mode & 0o7777;
    };
    const mask = process.umask();
    assert.equal(await make('script', 0o777), 0o777 & ~mask);
    assert.equal(await make('sealed', 0o444), 0o444);
    assert.equal(await make('secret', 0o600), 0o600);
    chmodSync(at('secret'), 0o640);
    assert.equal(await make('secret', 0o777), 0o640, 'one that is there keeps its own');
    await client.path(REQUEST.mkdir, at('folder'), withMode(0o750));
    assert.equal(statSync(at('folder')).mode & 0o7777, 0o750);
    assert.equal((await client.path(REQUEST.mkdir, at('folder'), uint32(0))).status, STATUS.failure);
    assert.equal((await client.path(REQUEST.mkdir, at('none/folder'), uint32(0))).status, STATUS.noSuchFile);
  });

  test(`${shell}: a name is bytes, and none of them does anything`, async (t) => {
    const it = await openServer(t, shell);
    const { client, directory, at } = it;
    const names = [
      'plain',
      'with space ',
      ' at both ends ',
      '-rf',
      '--help',
      '*',
      '?[a-z]',
      '.hidden',
      '..double',
      '...',
      "it's",
      'say "it"',
      '$(touch injected)',
      '`touch injected`',
      ';touch injected;',
      '&& touch injected',
      '| touch injected',
      '$HOME',
      '\\',
      '\\0101\\n',
      '%s%n%b',
      'line\nbreak',
      'end\n',
      '\n',
      '\n\n',
      'tab\there',
      '\u0001\u001b[31m',
      'größe',
      '日本語',
      'no such file or directory',
      'x: Permission denied',
      'a'.repeat(255),
    ].map((it) => Buffer.from(it));
    names.push(Buffer.from([0x66, 0xff, 0xfe, 0x80]));
    const listed = async () => {
      const { handle } = await client.path(REQUEST.opendir, directory);
      const found: Buffer[] = [];
      for (;;) {
        const answer = await client.ask(REQUEST.readdir, string(handle as Buffer));
        if (!answer.names) {
          assert.equal(answer.status, STATUS.endOfFile);
          break;
        }
        for (const { name, attributes, longName } of answer.names) {
          assert.equal(attributes.mode, lstatSync(Buffer.concat([Buffer.from(`${directory}/`), name])).mode);
          assert.ok(longName.endsWith(name.toString()));
          found.push(name);
        }
      }
      await client.close(handle as Buffer);
      return found.map((it) => it.toString('latin1')).sort();
    };
    const latin = (list: Buffer[]) => list.map((it) => it.toString('latin1')).sort();
    for (const name of names) {
      const path = Buffer.concat([Buffer.from(`${directory}/`), name]);
      const { handle, message } = await client.open(path, OPEN.write | OPEN.create | OPEN.exclusive, withMode(0o600));
      assert.ok(handle, `${name}: ${message}`);
      assert.equal((await client.write(handle, 0, name)).status, STATUS.ok);
      await client.close(handle);
      assert.ok(readFileSync(path).equals(name));
      assert.equal((await client.path(REQUEST.lstat, path)).attributes?.size, BigInt(name.length));
      assert.ok((await client.path(REQUEST.realpath, path)).names?.[0]?.name.equals(path), `${name}`);
    }
    assert.deepEqual(await listed(), latin([Buffer.from('.'), Buffer.from('..'), ...names]));
    // The same names as targets of links, as new names, as directories.
    for (const name of names) {
      const [path, other] = [name, Buffer.from('other')].map((it) => Buffer.concat([Buffer.from(`${directory}/`), it]));
      const both = (type: number, one: Buffer, two: Buffer) => client.path(type, one, string(two));
      assert.equal((await both(REQUEST.rename, path as Buffer, other as Buffer)).status, STATUS.ok, `${name}`);
      assert.equal((await both(REQUEST.symlink, name, path as Buffer)).status, STATUS.ok);
      assert.ok((await client.path(REQUEST.readlink, path as Buffer)).names?.[0]?.name.equals(name), `${name}`);
      assert.ok(readlinkSync(path as Buffer, 'buffer').equals(name));
      assert.equal((await client.path(REQUEST.remove, path as Buffer)).status, STATUS.ok);
      assert.equal((await client.path(REQUEST.remove, other as Buffer)).status, STATUS.ok);
      assert.equal((await client.path(REQUEST.mkdir, path as Buffer, uint32(0))).status, STATUS.ok);
      assert.ok(statSync(path as Buffer).isDirectory());
      assert.equal((await client.path(REQUEST.rmdir, path as Buffer)).status, STATUS.ok);
    }
    assert.deepEqual(readdirSync(directory), []);
    assert.equal(existsSync(at('injected')) || existsSync('injected') || existsSync('/injected'), false);
  });

  test(`${shell}: what cannot be is told as OpenSSH's own server tells it`, async (t) => {
    const it = await openServer(t, shell);
    const { client, at } = it;
    writeFileSync(at('file'), 'x');
    mkdirSync(at('full'));
    writeFileSync(at('full/file'), 'x');
    symlinkSync('nowhere', at('dangling'));
    symlinkSync('loop', at('loop'));
    const { noSuchFile, failure, badMessage, ok } = STATUS;
    const two = (type: number, one: string, other: string) => client.path(type, one, string(other));
    const cases: [Promise<{ status?: number }>, number][] = [
      [client.path(REQUEST.stat, at('none')), noSuchFile],
      [client.path(REQUEST.stat, at('file/below')), noSuchFile],
      [client.path(REQUEST.stat, at('dangling')), noSuchFile],
      [client.path(REQUEST.stat, at('loop')), noSuchFile],
      [client.path(REQUEST.stat, ''), noSuchFile],
      [client.path(REQUEST.stat, at('a\0b')), badMessage],
      [client.path(REQUEST.stat, at('n'.repeat(256))), badMessage],
      [client.path(REQUEST.stat, at('n/'.repeat(3000))), badMessage],
      [client.path(REQUEST.remove, at('none')), noSuchFile],
      [client.path(REQUEST.remove, at('full')), failure],
      [client.path(REQUEST.rmdir, at('full')), failure],
      [client.path(REQUEST.rmdir, at('none')), noSuchFile],
      [client.path(REQUEST.rmdir, at('file')), noSuchFile],
      [client.path(REQUEST.opendir, at('none')), noSuchFile],
      [client.path(REQUEST.opendir, at('file')), noSuchFile],
      [client.path(REQUEST.readlink, at('none')), noSuchFile],
      [client.path(REQUEST.readlink, at('file')), badMessage],
      [client.path(REQUEST.setstat, at('none'), withMode(0o600)), noSuchFile],
      [client.path(REQUEST.setstat, at('none'), uint32(8), uint32(1), uint32(2)), noSuchFile],
      [client.path(REQUEST.setstat, at('none'), uint32(1), Buffer.alloc(8)), noSuchFile],
      [two(REQUEST.rename, at('none'), at('other')), noSuchFile],
      [two(REQUEST.rename, at('file'), at('none/other')), noSuchFile],
      [two(REQUEST.rename, at('file'), at('full')), failure],
      [two(REQUEST.rename, at('file'), at('dangling')), failure],
      [two(REQUEST.symlink, 'file', at('full')), failure],
      [client.path(REQUEST.extended, 'no-such@extension', string('x')), STATUS.unsupported],
      [client.path(REQUEST.extended, 'constructor', string('x')), STATUS.unsupported],
      [client.ask(99), STATUS.unsupported],
      [client.path(REQUEST.lstat, at('dangling')).then((it) => (it.attributes ? { status: ok } : it)), ok],
    ];
    for (const [index, [answer, expected]] of cases.entries()) {
      const { status } = await answer;
      assert.equal(status, expected, `case ${index}`);
    }
    assert.deepEqual(readdirSync(at('full')), ['file'], 'nothing was moved into a directory');
    assert.equal(existsSync(at('none')), false);
  });

  test(`${shell}: names are moved, replaced and linked as a file system would`, async (t) => {
    const it = await openServer(t, shell);
    const { client, at } = it;
    const two = async (name: string, one: string, other: string) =>
      (await client.path(REQUEST.extended, name, string(at(one)), string(at(other)))).status;
    writeFileSync(at('old'), 'old');
    writeFileSync(at('new'), 'new');
    assert.equal(await two('posix-rename@openssh.com', 'new', 'old'), STATUS.ok);
    assert.deepEqual([readFileSync(at('old'), 'utf8'), existsSync(at('new'))], ['new', false]);
    mkdirSync(at('folder/inner'), { recursive: true });
    mkdirSync(at('empty'));
    assert.equal(await two('posix-rename@openssh.com', 'old', 'folder'), STATUS.failure);
    assert.equal(await two('posix-rename@openssh.com', 'empty', 'folder'), STATUS.failure);
    assert.notEqual(await two('posix-rename@openssh.com', 'folder', 'old'), STATUS.ok);
    assert.equal(await two('posix-rename@openssh.com', 'folder', 'empty'), STATUS.ok);
    assert.deepEqual(readdirSync(at('empty')), ['inner']);
    symlinkSync('empty', at('link'));
    assert.equal(await two('posix-rename@openssh.com', 'old', 'link'), STATUS.ok);
    assert.ok(lstatSync(at('link')).isFile(), 'the link was replaced, and nothing moved to where it led');
    assert.equal(await two('hardlink@openssh.com', 'link', 'again'), STATUS.ok);
    assert.equal(statSync(at('again')).ino, statSync(at('link')).ino);
    assert.equal(await two('hardlink@openssh.com', 'link', 'again'), STATUS.failure);
    assert.equal(await two('hardlink@openssh.com', 'none', 'other'), STATUS.noSuchFile);
  });

  test(`${shell}: a transfer stays with its file when that is moved, replaced or removed`, async (t) => {
    const it = await openServer(t, shell);
    const { client, at } = it;
    const handle = (await client.open(at('file'), OPEN.write | OPEN.create)).handle as Buffer;
    await client.write(handle, 0, Buffer.from('one '));
    linkSync(at('file'), at('kept'));
    execFileSync('rm', [at('file')]);
    writeFileSync(at('file'), 'another');
    await client.write(handle, 4, Buffer.from('two'));
    assert.equal((await client.ask(REQUEST.fsetstat, string(handle), withMode(0o604))).status, STATUS.ok);
    assert.equal((await client.ask(REQUEST.fstat, string(handle))).attributes?.size, 7n);
    assert.equal((await client.path(REQUEST.extended, 'fsync@openssh.com', string(handle))).status, STATUS.ok);
    await client.close(handle);
    assert.equal(readFileSync(at('kept'), 'utf8'), 'one two');
    assert.equal(statSync(at('kept')).mode & 0o777, 0o604);
    assert.equal(readFileSync(at('file'), 'utf8'), 'another');
  });

  test(`${shell}: times, sizes and permissions are set`, async (t) => {
    const it = await openServer(t, shell);
    const { client, at } = it;
    writeFileSync(at('file'), 'content');
    const all = Buffer.concat([uint32(1 | 4 | 8), Buffer.alloc(4), uint32(3), uint32(0o4711)]);
    const times = [uint32(1_000_000_000), uint32(1_234_567_890)];
    assert.equal((await client.path(REQUEST.setstat, at('file'), all, ...times)).status, STATUS.ok);
    const { size, mode, atimeMs, mtimeMs } = statSync(at('file'));
    assert.deepEqual([size, mode & 0o7777, atimeMs, mtimeMs], [3, 0o4711, 1_000_000_000_000, 1_234_567_890_000]);
    const { attributes } = await client.path(REQUEST.stat, at('file'));
    assert.deepEqual(attributes?.times, { accessed: 1_000_000_000, modified: 1_234_567_890 });
    assert.equal(attributes?.mode, mode);
    // Only root gives a file to somebody else.
    const [uid, gid] = process.getuid?.() === 0 ? [12345, 54321] : [statSync(at('file')).uid, statSync(at('file')).gid];
    assert.equal(
      (await client.path(REQUEST.setstat, at('file'), uint32(2), uint32(uid), uint32(gid))).status,
      STATUS.ok,
    );
    assert.deepEqual([statSync(at('file')).uid, statSync(at('file')).gid], [uid, gid]);
    const { extended } = await client.path(REQUEST.extended, 'statvfs@openssh.com', string(at('')));
    assert.equal(extended?.length, 11 * 8);
  });

  test(`${shell}: a directory of a thousand is listed whole`, async (t) => {
    const it = await openServer(t, shell);
    const { client, at } = it;
    mkdirSync(at('many'));
    const expected = Array.from({ length: 1000 }, (_, index) => `file ${index}\nwith a second line`).sort();
    for (const name of expected) writeFileSync(join(at('many'), name), '');
    const { handle } = await client.path(REQUEST.opendir, at('many'));
    const found: string[] = [];
    for (;;) {
      const { names } = await client.ask(REQUEST.readdir, string(handle as Buffer));
      if (!names) break;
      found.push(...names.map((it) => it.name.toString()));
    }
    assert.deepEqual(found.filter((it) => it !== '.' && it !== '..').sort(), expected);
  });

  test(`${shell}: the session inside ends with the client`, async (t) => {
    const it = await openServer(t, shell);
    const { client, session, at } = it;
    const handle = (await client.open(at('file'), OPEN.write | OPEN.create)).handle as Buffer;
    await client.write(handle, 0, Buffer.from('x'));
    client.source.end();
    await client.served;
    session.stdin.end();
    assert.deepEqual(await session.ended, { code: 0 });
  });
}
