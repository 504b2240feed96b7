import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
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
import { PassThrough } from 'node:stream';
import test, { type TestContext } from 'node:test';
import type { Session } from '../../src/compute/backend.ts';
import { factsOf } from '../../src/compute/inside/sftp-facts.ts';
import { SftpFault, STATUS } from '../../src/compute/inside/sftp-fault.ts';
import { InsideLost } from '../../src/compute/inside/sftp-inside.ts';
import { longName } from '../../src/ssh/sftp-entry.ts';
import { MalformedPacket, OPEN, REQUEST, string, uint32 } from '../../src/ssh/sftp-wire.ts';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { openDirectory, openLocalSession, openWireClient, SHELLS, withMode } from './wire-client.ts';

const NOBODY = 65534;

/** A server in a directory of its own, behind one of the shells that machines have. */
async function openServer(t: TestContext, shell: string, options: { user?: number; software?: string } = {}) {
  if (!hasComponent(t, shell, () => hasProgram((SHELLS[shell] as string[])[0] as string))) return undefined;
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

for (const shell of Object.keys(SHELLS)) {
  test(`${shell}: whatever is written anywhere is read back, step by step like the model`, async (t) => {
    const seed = Number(process.env.PURSER_TEST_SEED ?? randomBytes(4).readUInt32BE());
    t.diagnostic(`seed ${seed}`);
    const it = await openServer(t, shell);
    if (!it) return;
    const { client, at } = it;
    const random = randomOf(seed);
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
    if (!it) return;
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
    if (!it) return;
    const { client, at } = it;
    execFileSync('mkfifo', [at('pipe')]);
    for (const flags of [OPEN.read, OPEN.write, OPEN.write | OPEN.create | OPEN.truncate])
      assert.equal((await client.open(at('pipe'), flags)).status, STATUS.failure);
    assert.equal((await client.open('/dev/zero', OPEN.read)).status, STATUS.failure);
    assert.equal((await client.path(REQUEST.lstat, at('pipe'))).attributes?.mode, statSync(at('pipe')).mode);
  });

  test(`${shell}: a new file has the mode that is asked for, less what the machine withholds`, async (t) => {
    const it = await openServer(t, shell);
    if (!it) return;
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
    if (!it) return;
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
    if (!it) return;
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
    if (!it) return;
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
    if (!it) return;
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
    if (!it) return;
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
    const owner = [uint32(2), uint32(12345), uint32(54321)];
    assert.equal((await client.path(REQUEST.setstat, at('file'), ...owner)).status, STATUS.ok);
    assert.deepEqual([statSync(at('file')).uid, statSync(at('file')).gid], [12345, 54321]);
    const { extended } = await client.path(REQUEST.extended, 'statvfs@openssh.com', string(at('')));
    assert.equal(extended?.length, 11 * 8);
  });

  test(`${shell}: what the user inside may not do is not done`, async (t) => {
    const it = await openServer(t, shell, { user: NOBODY });
    if (!it) return;
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
    const it = await openServer(t, shell);
    if (!it || !hasComponent(t, 'root', () => process.getuid?.() === 0)) return;
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

  test(`${shell}: a directory of a thousand is listed whole`, async (t) => {
    const it = await openServer(t, shell);
    if (!it) return;
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
    if (!it) return;
    const { client, session, at } = it;
    const handle = (await client.open(at('file'), OPEN.write | OPEN.create)).handle as Buffer;
    await client.write(handle, 0, Buffer.from('x'));
    client.source.end();
    await client.served;
    session.stdin.end();
    assert.deepEqual(await session.ended, { code: 0 });
  });
}

test('whoever does not speak the protocol is not spoken with', async (t) => {
  const packet = (...parts: Buffer[]) => Buffer.concat([uint32(Buffer.concat(parts).length), ...parts]);
  const open = [Buffer.of(REQUEST.open), uint32(1), string('/tmp/x')];
  const rude: [Buffer, boolean][] = [
    [packet(...open, uint32(1), uint32(0)), false], // No greeting first.
    [Buffer.from('GET / HTTP/1.1\r\n\r\n'), false],
    [uint32(0), true],
    [uint32(0xffffffff), true],
    [Buffer.concat([uint32(256 * 1024 + 1), Buffer.alloc(256 * 1024 + 1, REQUEST.write)]), true],
    [packet(Buffer.of(REQUEST.open)), true],
    [packet(...open), true],
    [packet(Buffer.of(REQUEST.stat), uint32(1), uint32(1000), Buffer.from('short')), true],
    [packet(Buffer.of(REQUEST.write), uint32(1), string('abcd'), Buffer.alloc(8), uint32(9), Buffer.from('x')), true],
    [packet(Buffer.of(REQUEST.setstat), uint32(1), string('/tmp'), uint32(0x80000000), uint32(0xffffffff)), true],
  ];
  for (const [index, [bytes, greet]] of rude.entries()) {
    const session = openLocalSession(t, { shell: ['dash'], directory: openDirectory(t) });
    const client = await openWireClient(t, session, { greet });
    client.source.write(bytes);
    await assert.rejects(client.served, MalformedPacket, `case ${index}`);
    session.kill();
  }
});

test('handles are few, and a name that was never given is none', async (t) => {
  const it = await openServer(t, 'dash');
  if (!it) return;
  const { client, at, directory } = it;
  const made = await Promise.all(
    Array.from({ length: 7 }, (_, index) => client.open(at(`file ${index}`), OPEN.write | OPEN.create)),
  );
  assert.deepEqual(
    made.map(({ status }) => status),
    [...Array(6).fill(undefined), STATUS.failure],
  );
  assert.match(made[6]?.message ?? '', /at most 6 files/);
  for (const [index, { handle }] of made.slice(0, 6).entries())
    await client.write(handle as Buffer, 0, Buffer.from(`content ${index}`));
  await client.close(made[2]?.handle as Buffer);
  const again = (await client.open(at('file 6'), OPEN.write | OPEN.create)).handle as Buffer;
  await client.write(again, 0, Buffer.from('content 6'));
  for (let index = 0; index < 7; index++)
    assert.equal(readFileSync(at(`file ${index}`), 'utf8'), `content ${index}`, 'each has its own');
  for (const name of [Buffer.alloc(4), uint32(999), Buffer.from('x'), Buffer.alloc(256), made[2]?.handle as Buffer]) {
    assert.equal((await client.read(name, 0, 1)).status, STATUS.failure);
    assert.equal((await client.write(name, 0, Buffer.from('x'))).status, STATUS.failure);
    assert.equal((await client.close(name)).status, STATUS.failure);
    assert.equal((await client.ask(REQUEST.readdir, string(name))).status, STATUS.failure);
    assert.equal((await client.ask(REQUEST.fsetstat, string(name), withMode(0))).status, STATUS.failure);
  }
  const directories = await Promise.all(Array.from({ length: 17 }, () => client.path(REQUEST.opendir, directory)));
  assert.equal(directories[15]?.status, undefined);
  assert.equal(directories[16]?.status, STATUS.failure);
  assert.equal((await client.read(directories[0]?.handle as Buffer, 0, 1)).status, STATUS.failure);
});

test('a client that does not read is not worked for', async (t) => {
  const it = await openServer(t, 'dash');
  if (!it) return;
  const { client, at } = it;
  writeFileSync(at('file'), Buffer.alloc(4 * 1024 * 1024, 'x'));
  const { handle } = await client.open(at('file'), OPEN.read);
  const release = client.hold();
  const answers = Array.from({ length: 100 }, (_, index) => client.read(handle as Buffer, index * 32_768, 32_768));
  // What it sends stays where it is felt: one request is in hand, the others wait.
  await new Promise((resolve) => setTimeout(resolve, 300));
  assert.ok(client.source.readableLength > 90 * 25, `${client.source.readableLength} bytes wait`);
  release();
  for (const answer of answers) assert.equal((await answer).data?.length, 32_768);
});

test('a write is not called done when the session inside ends before it is', async (t) => {
  const it = await openServer(t, 'dash');
  if (!it) return;
  const { client, session, at } = it;
  const handle = (await client.open(at('file'), OPEN.write | OPEN.create)).handle as Buffer;
  process.kill(session.pid, 'SIGSTOP');
  let answered = false;
  void client.write(handle, 0, Buffer.alloc(100_000)).then(() => {
    answered = true;
  });
  process.kill(session.pid, 'SIGKILL');
  await assert.rejects(client.served, InsideLost);
  assert.equal(answered, false);
});

test('a machine that does not answer is given up after two minutes', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let isKilled = false;
  const session: Session = {
    stdin: new PassThrough(),
    stdout: new PassThrough(),
    stderr: new PassThrough(),
    resize: () => {},
    ended: new Promise(() => {}),
    kill: () => {
      isKilled = true;
    },
  };
  const client = await openWireClient(t, session);
  const failed = assert.rejects(client.served, { message: 'the machine was silent for 120 s' });
  t.mock.timers.tick(119_999);
  assert.equal(isKilled, false);
  t.mock.timers.tick(1);
  await failed;
  assert.equal(isKilled, true);
});

test('a machine without what is needed says what it lacks', async (t) => {
  const directory = openDirectory(t);
  for (const name of ['cat', 'chmod', 'chown', 'head', 'ln', 'mkdir', 'mv', 'readlink', 'rm', 'rmdir', 'stat', 'touch'])
    symlinkSync(execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim(), join(directory, name));
  const session = openLocalSession(t, { shell: ['env', `PATH=${directory}`, '/bin/dash'], directory });
  const client = await openWireClient(t, session);
  await assert.rejects(client.served, { message: 'this machine has no dd' });
});

test('a tool that does less than it says is found out', async (t) => {
  const tools = {
    head: '/usr/bin/head -c $(($2 - 1)); /usr/bin/head -c 1 >/dev/null',
    dd: 'case $* in *seek*) exit 0 ;; esac; exec /bin/dd "$@"',
  };
  for (const [name, body] of Object.entries(tools)) {
    const directory = openDirectory(t);
    mkdirSync(join(directory, 'bin'));
    writeFileSync(join(directory, 'bin', name), `#!/bin/sh\n${body}\n`, { mode: 0o755 });
    const path = `PATH=${directory}/bin:${process.env.PATH}`;
    const session = openLocalSession(t, { shell: ['env', path, 'dash'], directory });
    const client = await openWireClient(t, session);
    const { handle } = await client.open('file', OPEN.write | OPEN.create);
    const answers = [await client.write(handle as Buffer, 0, Buffer.from('first'))];
    answers.push(await client.write(handle as Buffer, 100, Buffer.from('second')));
    assert.equal(answers[1]?.status, STATUS.failure, name);
    assert.match(answers[1]?.message ?? '', /the file is at \d+ instead of \d+/);
    session.kill();
  }
});

test('what a shell says before it begins is not taken for an answer', async (t) => {
  const directory = openDirectory(t);
  const noise = 'echo "welcome 0"; echo "12345678/ 0022 /wrong"; echo problem >&2; exec dash "$@"';
  const session = openLocalSession(t, { shell: ['dash', '-c', noise, 'dash'], directory });
  const client = await openWireClient(t, session);
  const { names } = await client.path(REQUEST.realpath, '.');
  assert.equal(names?.[0]?.name.toString(), directory);
});

test('the two paths of a link are read in the order of whoever says them', async (t) => {
  for (const [software, first, second] of [
    ['OpenSSH_9.2p1 Debian-2', 'target', 'link'],
    ['paramiko_3.4.0', 'target', 'link'],
    ['Go', 'target', 'link'],
    ['libssh_0.10.5', 'link', 'target'],
    ['GoAnywhere', 'link', 'target'],
  ] as const) {
    const it = await openServer(t, 'dash', { software });
    if (!it) return;
    assert.equal((await it.client.path(REQUEST.symlink, first, string(second))).status, STATUS.ok);
    assert.equal(readlinkSync(it.at('link')), 'target', software);
  }
});

test('a line of a directory looks as ls makes it', () => {
  const now = Date.UTC(2026, 10, 21, 12) / 1000;
  const line = (mode: number, modified: number) => {
    const facts = factsOf(`${mode.toString(16)} 1234 0 100 1 ${modified} 2:root:UNKNOWN\n`);
    return longName(facts, Buffer.from('a name'), now).toString();
  };
  assert.equal(line(0o100644, now - 60), '-rw-r--r--   2 root     100          1234 Nov 21 11:59 a name');
  assert.equal(line(0o041777, 0), 'drwxrwxrwt   2 root     100          1234 Jan  1  1970 a name');
  assert.equal(line(0o104750, now), '-rwsr-x---   2 root     100          1234 Nov 21 12:00 a name');
  assert.equal(line(0o102640, now), '-rw-r-S---   2 root     100          1234 Nov 21 12:00 a name');
  assert.equal(line(0o120777, now).slice(0, 10), 'lrwxrwxrwx');
  assert.throws(() => factsOf('81a4 12 nonsense'), SftpFault);
});

/** Numbers from 0 to 1 that follow from the seed. */
function randomOf(seed: number): () => number {
  let counter = 0;
  let pool = Buffer.alloc(0);
  return () => {
    if (pool.length < 4) pool = createHash('sha512').update(`${seed} ${counter++}`).digest();
    const value = pool.readUInt32BE() / 2 ** 32;
    pool = pool.subarray(4);
    return value;
  };
}
