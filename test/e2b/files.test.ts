import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readdirSync, rmSync } from 'node:fs';
import { type IncomingMessage, request } from 'node:http';
import test from 'node:test';
import { partsOf } from '../../src/http/e2b/multipart.ts';
import '../helper/on-disk.ts';
import { until } from '../helper/waiting.ts';
import { openInside } from './shared.ts';

const BOUNDARY = '----b0undary';
const FORM = { 'content-type': `multipart/form-data; boundary=${BOUNDARY}` };
/** A form with files, as a browser or the SDK sends it. */
const formOf = (files: Record<string, string | Buffer>) =>
  Buffer.concat([
    ...Object.entries(files).flatMap(([name, content]) => [
      Buffer.from(`--${BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\n\r\n`),
      Buffer.from(content as string),
      Buffer.from('\r\n'),
    ]),
    Buffer.from(`--${BOUNDARY}--\r\n`),
  ]);

/** A sandbox, and calls on its files. */
async function openFiles(t: Parameters<typeof openInside>[0], options: Parameters<typeof openInside>[2] = {}) {
  const it = await openInside(t, {}, options);
  const path = '/v1/e2b/envd/files';
  const write = (query: string, body: Buffer | string, headers: Record<string, string> = FORM) =>
    it.purser.ask('POST', `${path}?${query}`, { headers: { ...it.headers, ...headers }, body });
  const read = (name: string) =>
    it.purser.ask('GET', `${path}?path=${encodeURIComponent(name)}`, { headers: it.headers });
  const fs = (name: string, body: object) => it.rpc(`filesystem.Filesystem/${name}`, body);
  const home = (await fs('Stat', { path: '~' })).body.entry.path as string;
  return { ...it, write, read, fs, home };
}

test('a file is written by its path in the query, and read again; many by their names', async (t) => {
  const { write, read, home } = await openFiles(t);
  const one = await write('path=a%2Fb.txt', formOf({ ignored: 'hello\r\n--no boundary\n' }));
  assert.deepEqual([one.status, one.body], [200, [{ path: `${home}/a/b.txt`, name: 'b.txt', type: 'file' }]]);
  const file = await read('a/b.txt');
  assert.equal(file.text, 'hello\r\n--no boundary\n');
  assert.equal(file.headers['content-disposition'], 'attachment');
  assert.equal(file.headers['content-security-policy'], 'sandbox');
  const many = await write('', formOf({ 'm/1': 'one', [`${home}/m/%22`]: 'two', '~/m/3': '' }));
  assert.deepEqual(
    many.body.map((it: { path: string }) => it.path),
    ['m/1', 'm/"', 'm/3'].map((it) => `${home}/${it}`),
  );
  assert.deepEqual([(await read('m/1')).text, (await read('m/"')).text, (await read('m/3')).text], ['one', 'two', '']);
  const plain = { 'content-type': 'application/octet-stream' };
  assert.equal((await write('path=plain', 'bytes', plain)).status, 200);
  assert.equal((await read('~/plain')).text, 'bytes');
});

test('what is refused of files has E2B’s shape, and leaves nothing behind', async (t) => {
  const { write, read, home } = await openFiles(t);
  const there = () => readdirSync(home).filter((it) => !it.startsWith('.purser'));
  const before = there();
  assert.deepEqual([(await read('nope')).status, (await read('nope')).body.code], [404, 404]);
  assert.equal((await read('.')).status, 400);
  assert.equal((await write('path=x', formOf({ a: '1' }).subarray(0, -8))).status, 400);
  assert.equal((await write('path=x', 'text', { 'content-type': 'text/plain' })).status, 415);
  assert.equal((await write('path=x', 'no form')).status, 400);
  assert.equal((await write('path=%2Fproc%2Fx', formOf({ a: '1' }))).status, 400);
  assert.equal((await write('', formOf({ '': '1' }))).status, 400);
  assert.deepEqual(there(), before);
});

test('parts of a form are whole wherever the pieces of the body are cut', async () => {
  const contents = { one: 'a\r\n-', two: Buffer.from([13, 10, 45, 45, 0, 255]), three: '' };
  const body = formOf(contents);
  for (let size = 1; size < body.length; size++) {
    const pieces = Array.from({ length: Math.ceil(body.length / size) }, (_, i) =>
      body.subarray(i * size, (i + 1) * size),
    );
    const found: Record<string, Buffer> = {};
    for await (const part of partsOf({ next: async () => pieces.shift() }, BOUNDARY)) {
      const got: Buffer[] = [];
      for (let piece = await part.next(); piece; piece = await part.next()) got.push(Buffer.from(piece));
      found[part.filename as string] = Buffer.concat(got);
    }
    assert.deepEqual(
      found,
      Object.fromEntries(Object.entries(contents).map(([name, it]) => [name, Buffer.from(it as string)])),
      `pieces of ${size}`,
    );
  }
});

test('files and directories are described, listed, made, moved and removed', async (t) => {
  const { fs, write, run, home } = await openFiles(t);
  await write('path=d/x', formOf({ a: 'content' }));
  await (await run('chmod 640 d/x; ln -s x d/link; mkdir d/sub; : > "d/sub/new\nline"')).end();
  const { entry } = (await fs('Stat', { path: 'd/x' })).body;
  const { modifiedTime, owner, group, ...rest } = entry;
  assert.deepEqual(rest, {
    ...{ name: 'x', type: 'FILE_TYPE_FILE', path: `${home}/d/x`, size: '7' },
    ...{ mode: 0o640, permissions: '-rw-r-----' },
  });
  assert.ok(Date.parse(modifiedTime) > 0 && owner && group);
  const link = (await fs('Stat', { path: 'd/link' })).body.entry;
  assert.deepEqual([link.type, link.symlinkTarget], ['FILE_TYPE_SYMLINK', 'x']);
  const names = async (depth: number) =>
    (await fs('ListDir', { path: 'd', depth })).body.entries.map((it: { name: string }) => it.name).sort();
  assert.deepEqual(await names(1), ['link', 'sub', 'x']);
  assert.deepEqual(await names(2), ['link', 'new\nline', 'sub', 'x']);
  assert.equal((await fs('ListDir', { path: 'd/x' })).body.code, 'invalid_argument');
  assert.equal((await fs('ListDir', { path: 'none' })).body.code, 'not_found');
  assert.equal((await fs('MakeDir', { path: 'p/q' })).body.entry.type, 'FILE_TYPE_DIRECTORY');
  const again = await fs('MakeDir', { path: 'p/q' });
  assert.deepEqual([again.status, again.body.code], [409, 'already_exists']);
  const moved = await fs('Move', { source: 'd/x', destination: 'p/q/y' });
  assert.equal(moved.body.entry.path, `${home}/p/q/y`);
  assert.equal((await fs('Stat', { path: 'd/x' })).body.code, 'not_found');
  // A directory that was to be replaced is there as before where that fails.
  await fs('MakeDir', { path: 'e/f' });
  for (const [source, destination] of [
    ['e/f', 'e/f'],
    ['e', 'e/f'],
  ]) {
    assert.equal((await fs('Move', { source, destination })).body.code, 'invalid_argument');
    assert.equal((await fs('Stat', { path: 'e/f' })).status, 200, `${source} to ${destination}`);
  }
  assert.equal((await fs('Remove', { path: 'd' })).status, 200);
  assert.equal((await fs('Remove', { path: 'd' })).status, 200);
  assert.equal((await fs('Stat', { path: 'd' })).status, 404);
  assert.equal((await fs('Remove', { path: '/' })).status, 400);
  const hostile = `'; touch ${home}/injected; '`;
  for (const name of ['Stat', 'ListDir', 'Remove', 'MakeDir']) await fs(name, { path: hostile });
  assert.equal((await fs('Stat', { path: 'injected' })).status, 404);
});

test('a file may have any time, and is described all the same', async (t) => {
  const { fs, run, sandbox } = await openFiles(t);
  const path = `/dev/shm/purser-${sandbox.sandboxID}`; // Memory, which keeps such times; a disk has the nearest that it knows.
  t.after(() => rmSync(path, { force: true }));
  for (const seconds of ['8700000000000', '-8700000000000']) {
    assert.equal((await (await run(`touch -d @${seconds} ${path}`)).end()).end.exitCode, 0);
    const { status, body } = await fs('Stat', { path });
    assert.equal(status, 200);
    assert.match(body.entry.modifiedTime, /^\d{4}-.*Z$/);
  }
});

test('a watched directory tells of what happens in it', async (t) => {
  const { stream, run, fs } = await openFiles(t);
  await fs('MakeDir', { path: 'w' });
  const watch = await stream('filesystem.Filesystem/WatchDir', { path: 'w' });
  const events = () => watch.messages.flatMap((it) => it.body.filesystem ?? []).map((it) => `${it.type} ${it.name}`);
  await until('it has begun', () => watch.messages.length > 0);
  assert.deepEqual(watch.messages[0]?.body, { start: {} });
  await (await run('echo 1 > w/a')).end();
  await until(
    'the file is told',
    () => events().includes('EVENT_TYPE_CREATE a') && events().includes('EVENT_TYPE_WRITE a'),
  );
  await (await run('mv w/a w/b')).end();
  await until(
    'its new name is told',
    () => events().includes('EVENT_TYPE_RENAME a') && events().includes('EVENT_TYPE_CREATE b'),
  );
  await (await run('chmod 600 w/b')).end();
  await until('its mode is told', () => events().at(-1) === 'EVENT_TYPE_CHMOD b');
  await (await run('rm w/b')).end();
  await until('its end is told', () => events().includes('EVENT_TYPE_REMOVE b'));
  watch.leave();
  const none = await stream('filesystem.Filesystem/WatchDir', { path: 'none' });
  assert.equal((await none.end()).error.code, 'not_found');
  const late = await stream('filesystem.Filesystem/WatchDir', { path: 'w' }, { 'connect-timeout-ms': '100' });
  assert.equal((await late.end()).error.code, 'deadline_exceeded');
});

test('a watch tells of each change once, holds no more than it needs, and outlives its directory', async (t) => {
  const { purser, wallet, stream, run, fs } = await openFiles(t);
  const { treeId } = purser.app.tenantOf(wallet.id);
  const hasRoom = (bytes: number) => {
    const share = purser.app.memory.open(treeId);
    const has = share.tryTake(bytes);
    share.close();
    return has;
  };
  const QUOTA = 64 * 1024 * 1024;
  const name = 'x'.repeat(200);
  await (await run(`mkdir w && cd w && for i in 1 2 3 4 5 6 7 8 9; do : > "$i-${name}"; done`)).end();
  const { watcherId } = (await fs('CreateWatcher', { path: 'w' })).body;
  assert.ok(!hasRoom(QUOTA - 4 * 9 * 200), 'what a watcher compares with is counted');
  assert.equal((await fs('RemoveWatcher', { watcherId })).status, 200);
  await until('nothing is held', async () => hasRoom(QUOTA - 1024));
  const watch = await stream('filesystem.Filesystem/WatchDir', { path: 'w' });
  await until('it has begun', () => watch.messages.length > 0);
  assert.ok(!hasRoom(QUOTA - 4 * 9 * 200), 'what it compares with is counted');
  await (await run(`touch w/last; rm -r w`)).end();
  const events = () => watch.messages.flatMap((it) => it.body.filesystem ?? []).map((it) => `${it.type} ${it.name}`);
  await until('the end is told', () => events().filter((it) => it.startsWith('EVENT_TYPE_REMOVE')).length >= 9);
  assert.equal(new Set(events()).size, events().length, 'nothing is told twice');
  watch.leave();
  await until('nothing is held', async () => hasRoom(QUOTA - 1024));
  assert.equal((await fs('Stat', { path: 'w' })).status, 404);
});

test('a directory of many entries is listed whole, and counted while it is', async (t) => {
  const { purser, wallet, run, fs } = await openFiles(t);
  await (await run('mkdir d && cd d && seq 1 3000 | xargs touch')).end();
  const listed = await fs('ListDir', { path: 'd', depth: 1 });
  assert.equal(new Set(listed.body.entries.map((it: { name: string }) => it.name)).size, 3000);
  const share = purser.app.memory.open(purser.app.tenantOf(wallet.id).treeId);
  share.add(63.8 * 1024 * 1024);
  const refused = await fs('ListDir', { path: 'd', depth: 1 });
  assert.deepEqual([refused.status, refused.body.code], [400, 'invalid_argument']);
  share.close();
  // What the machine prints has room, four times as it is counted, but not the answer.
  const printed = listed.body.entries.reduce((sum: number, it: { path: string }) => sum + 80 + it.path.length, 0);
  share.add(64 * 1024 * 1024 - 4 * printed - listed.text.length / 2);
  const unanswered = await fs('ListDir', { path: 'd', depth: 1 });
  assert.deepEqual([unanswered.status, unanswered.body.code], [429, 'resource_exhausted']);
  share.close();
  assert.equal((await fs('ListDir', { path: 'd', depth: 1 })).status, 200);
});

/** The signature of an address, as the SDKs compute it. */
function signatureOf({ path = '', ...query }: Record<string, string>, operation: string, token: string): string {
  const { signature_expiration: expiration } = query;
  const text = `${path}:${operation}::${token}${expiration === undefined ? '' : `:${expiration}`}`;
  return `v1_${createHash('sha256').update(text).digest('base64').replaceAll('=', '')}`;
}

test('a signed address opens the one file that it was signed for, without any header', async (t) => {
  const { purser, write, sandbox, read } = await openFiles(t);
  await write('path=a', formOf({ a: 'secret' }));
  const token = sandbox.envdAccessToken;
  const address = (query: Record<string, string>, operation: 'read' | 'write', over = query) =>
    `/files?${new URLSearchParams({ ...over, signature: signatureOf(query, operation, token) })}`;
  const get = async (path: string) => (await purser.ask('GET', path)).status;
  const signed = await purser.ask('GET', address({ path: 'a' }, 'read'));
  assert.deepEqual([signed.status, signed.text], [200, 'secret']);
  assert.equal(await get(address({ path: 'a' }, 'read', { path: 'b' })), 401);
  assert.equal(await get(address({ path: 'a' }, 'write')), 401);
  assert.equal(await get('/files?path=a'), 401);
  const now = Math.floor(purser.clock.wall() / 1000);
  const to = (at: number) => ({ path: 'a', signature_expiration: String(at) });
  assert.equal(await get(address(to(now + 60), 'read')), 200);
  assert.equal(await get(address(to(now), 'read')), 401);
  assert.equal(await get(address(to(now), 'read', to(now + 60))), 401);
  // The text that is signed is the same: `a:read:` and `:read:` beside it, as the user's name.
  assert.equal(await get(address({ path: 'a:read:' }, 'read', { path: 'a', username: ':read:' })), 401);
  const up = await purser.ask('POST', address({ path: 'up' }, 'write'), { headers: FORM, body: formOf({ x: 'new' }) });
  assert.equal(up.status, 200);
  assert.equal((await read('up')).text, 'new');
  const anonymous = await purser.ask('GET', '/v1/e2b/envd/files?path=a', {
    headers: { 'e2b-sandbox-id': sandbox.sandboxID },
  });
  assert.equal(anonymous.status, 401);
  assert.ok(!purser.log.join('\n').includes(token));
});

test('an address is not tried on all sandboxes by a network that has guessed too often', async (t) => {
  const { purser, write, sandbox } = await openFiles(t, { settings: { limits: { failed_auth_per_minute: 2 } } });
  await write('path=a', formOf({ a: 'secret' }));
  const get = async (signature: string) =>
    (await purser.ask('GET', `/files?${new URLSearchParams({ path: 'a', signature })}`)).status;
  const guess = signatureOf({ path: 'a' }, 'read', 'ff'.repeat(32));
  assert.deepEqual([await get(guess), await get('v1_'), await get(guess)], [401, 401, 429]);
  assert.equal(await get(signatureOf({ path: 'a' }, 'read', sandbox.envdAccessToken)), 429);
});

test('a form that a stopping server cuts off in the middle is an unknown outcome, as a part of it is written', async (t) => {
  const { purser, headers, home } = await openFiles(t);
  const asked = request(`${purser.url}/v1/e2b/envd/files`, { method: 'POST', headers: { ...headers, ...FORM } });
  const answered = once(asked, 'response') as Promise<[IncomingMessage]>;
  asked.write(formOf({ first: '1', second: '2' }).subarray(0, -30));
  await until('the first file is there', () => existsSync(`${home}/first`));
  purser.app.memory.cutOff();
  const [answer] = await answered;
  assert.equal(answer.statusCode, 504);
  asked.destroy();
});
