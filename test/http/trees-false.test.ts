import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { archive, BYTES, extended, member, openLocalLease, TAR, treeOf } from './trees-shared.ts';

const { getuid = () => 0, getgid = () => 0 } = process;
const GOOD = { name: 'good', content: 'good' };

test('an entry that leaves its directory, is a device or has the bits of others is refused, with what was written', async (t) => {
  const outside = mkdtempSync(join(tmpdir(), 'purser-outside-'));
  t.after(() => rmSync(outside, { recursive: true, force: true }));
  writeFileSync(join(outside, 'file'), 'untouched');
  const { upload, sh } = await openLocalLease(t);
  const link = { name: 'out', type: '2', linkName: outside };
  const written = 'The entries before are written';
  let count = 0;
  for (const [members, words, entries = 1] of [
    [[{ name: '../up', content: 'x' }], /"\.\.\/up" would leave the directory/],
    [[{ name: 'a/../../up', content: 'x' }], /would leave the directory/],
    [[{ name: `${outside}/new`, content: 'x' }], /is absolute, and would leave the directory/],
    [[{ name: 'new', prefix: outside, content: 'x' }], /is absolute/],
    [[link, { name: 'out/new', content: 'x' }], /leads through the symbolic link "out"/, 2],
    [[link, { name: './out//new', content: 'x' }], /leads through the symbolic link "out"/, 2],
    [[link, { name: 'out', type: '5' }], /a symbolic link is in its place/, 2],
    [
      [
        { name: 'in', type: '2', linkName: '.' },
        { name: 'in/out', type: '2', linkName: outside },
      ],
      /leads through/,
      2,
    ],
    [[{ name: 'hard', type: '1', linkName: `${outside}/file` }], /is a hard link to .*, which is absolute/],
    [[{ name: 'hard', type: '1', linkName: '../file' }], /would leave the directory/],
    [[link, { name: 'hard', type: '1', linkName: 'out/file' }], /which is no file of the archive/, 2],
    [[link, { name: 'hard', type: '1', linkName: 'out' }], /which is no file of the archive/, 2],
    [[extended({ path: '../up' }), { name: 'innocent', content: 'x' }], /"\.\.\/up" would leave/],
    [[extended({ linkpath: '/etc/passwd' }), { name: 'hard', type: '1', linkName: 'good' }], /which is absolute/],
    [[member({ name: '././@LongLink', type: 'L', content: '../up\0' }), { name: 'innocent' }], /would leave/],
    [[extended({ path: '../up' }, 'g'), { name: 'innocent' }], /a name or a size for all of its entries/],
    [[{ name: 'device', type: '3' }], /"device" is a device/],
    [[{ name: 'device', type: '4' }], /is a device/],
    [[{ name: 'pipe', type: '6' }], /is a named pipe/],
    [[{ name: 'what', type: 'Z' }], /has the type "Z"/],
    [[{ name: 'sparse', type: 'S' }], /is a sparse file/],
    [[extended({ 'GNU.sparse.major': '1', 'GNU.sparse.minor': '0' }), { name: 'sparse' }], /a sparse file/],
    [[{ name: 'root', mode: 0o4755, uid: getuid() + 1 }], /has the setuid bit of another user/],
    [[{ name: 'group', mode: 0o2755, gid: getgid() + 1 }], /has the setgid bit of another group/],
    [[extended({ uid: String(getuid() + 1) }), { name: 'root', mode: 0o4755, uid: getuid() }], /setuid bit of another/],
    [[{ name: 'two\nlines' }], /has a control character in its name/],
    [[extended({ path: 'n\0ul' }), { name: 'innocent' }], /has a control character in its name/],
    [[extended({ path: `${'n'.repeat(256)}/x` }), { name: 'innocent' }], /has a part of more than 255 bytes/],
    [[extended({ path: 'n/'.repeat(2049) }), { name: 'innocent' }], /is longer than 4096 bytes/],
    [[extended({ path: 'n'.repeat(70_000) }), { name: 'innocent' }], /a name or a header of more than 65536 bytes/],
    [
      [member({ name: 'x', type: 'x', content: '999999 path=up\n' }), { name: 'innocent' }],
      /header that cannot be read/,
    ],
    [[member({ name: 'x', type: 'x', content: 'no length\n' }), { name: 'innocent' }], /header that cannot be read/],
    [[{ name: '.', content: 'x' }], /is no name/],
    [[Buffer.alloc(1024), { name: 'after' }], /goes on after its end/],
    [[Buffer.alloc(512), { name: 'after' }], /goes on after a block of zeros/],
    [
      [Buffer.from('garbage'.repeat(100)).subarray(0, 512)],
      /is no tar archive: at byte 1024, the checksum cannot be read/,
    ],
  ] as const) {
    const path = `work/${count++}`;
    const { status, body } = await upload(path, archive(GOOD, ...members), TAR);
    assert.deepEqual([status, body.error?.code], [400, 'invalid_request'], `${words}`);
    assert.match(body.error.message, words);
    assert.match(
      body.error.message,
      new RegExp(`${entries} entr(y was|ies were) written, the last one ".*"\\.$`),
      written,
    );
  }
  const all = Array.from({ length: count }, (_, i) => `work/${i}`);
  assert.equal(await sh(`cat ${all.map((it) => `${it}/good`).join(' ')}`), 'good'.repeat(count));
  assert.equal(await sh("find work -type f ! -name good; find work -name '*purser*'"), '', 'no more than that');
  assert.deepEqual(readdirSync(outside), ['file']);
  assert.equal(readFileSync(join(outside, 'file'), 'utf8'), 'untouched');
  assert.equal(existsSync(join(outside, '..', 'up')), false);
});

test('a link that is there already is not followed, and a file takes its place', async (t) => {
  const outside = mkdtempSync(join(tmpdir(), 'purser-outside-'));
  t.after(() => rmSync(outside, { recursive: true, force: true }));
  writeFileSync(join(outside, 'file'), 'untouched');
  const { upload, sh } = await openLocalLease(t);
  await sh(`mkdir -p work/deep && ln -s ${outside} work/deep/out && ln -s ${outside}/file work/file`);
  const through = await upload('work', archive({ name: 'deep/out/new', content: 'x' }), TAR);
  assert.match(through.body.error?.message, /leads through the symbolic link "deep\/out"\. Nothing was written\.$/);
  const over = await upload('work', archive({ name: 'deep/out', type: '5' }), TAR);
  assert.match(over.body.error?.message, /a symbolic link is in its place/);
  const replaced = await upload('work', archive({ name: 'file', content: 'own' }), TAR);
  assert.equal(replaced.status, 200, replaced.text);
  assert.equal(await sh('cat work/file; stat -c %F work/file'), 'ownregular file\n');
  assert.deepEqual(readdirSync(outside), ['file']);
  assert.equal(readFileSync(join(outside, 'file'), 'utf8'), 'untouched');
});

test('an archive that is cut anywhere is refused, and says how much of it was written', async (t) => {
  const { upload, sh } = await openLocalLease(t);
  const whole = archive({ name: 'one', content: 'one' }, { name: 'two', content: '2'.repeat(2000) });
  const CUTS = [
    [0, 0],
    [1, 0],
    [511, 0],
    [512, 0, 'one'],
    [1023, 0, 'one'],
    [1024, 1],
    [1025, 1],
    [1536, 1, 'two'],
    [3000, 1, 'two'],
    [3584, 2],
    [4096, 2],
    [4607, 2],
  ] as const;
  for (const [length, entries, begun] of CUTS) {
    const path = `cut/${length}`;
    const { status, body } = await upload(path, whole.subarray(0, length), TAR);
    assert.equal(status, 400, `${length}`);
    assert.match(body.error.message, /^The archive: is cut/);
    const written = entries ? `${entries} entr` : 'Nothing was written';
    assert.match(
      body.error.message,
      new RegExp(`${written}.*${begun ? `, and a part of "${begun}"` : ''}\\.$`),
      `${length}`,
    );
  }
  const made = (await sh('cd cut && for it in *; do echo "$it" $(ls -A "$it"); done')).trim().split('\n');
  const namesOf = new Map(made.map((it) => it.split(' ')).map(([length, ...names]) => [Number(length), names]));
  for (const [length, entries, begun] of CUTS)
    assert.deepEqual(
      namesOf.get(length)?.filter((it) => it !== begun),
      ['one', 'two'].slice(0, entries),
      `${length}`,
    );
  assert.equal((await upload('cut/whole', whole, TAR)).status, 200);
});

test('what is no tar archive, no path and no media type says so', async (t) => {
  const { purser, token, id, upload, sh } = await openLocalLease(t);
  const { pack } = treeOf(t, { a: 'a' });
  const gzipped = execFileSync('gzip', ['-c'], { input: pack() });
  await sh('echo > file; mkdir folder');
  for (const [path, body, type, words, status = 400] of [
    ['w', gzipped, TAR, /is compressed: send it plain/],
    ['w', '{"id":"x"}', TAR, /is cut/],
    ['w', 'x'.repeat(600), TAR, /is no tar archive/],
    ['file', pack(), TAR, /path: cannot be made there/],
    ['/', pack(), TAR, /path: must be a directory below \//],
    ['../up', pack(), TAR, /path: must not contain \. or \.\./],
    ['/proc/self', pack(), TAR, /must not lie in \/proc/],
    ['folder', 'x', BYTES, /path: is a directory/],
    ['folder/', 'x', BYTES, /path: must name a file/],
    ['/dev/x', 'x', BYTES, /must not lie in \/proc/],
    ['w', 'x', 'text/plain', /Send the body as application\/json or application\/octet-stream or/, 415],
  ] as const) {
    const answer = await upload(path, body, type);
    assert.equal(answer.status, status, answer.text);
    assert.match(answer.body.error.message, words);
  }
  const json = await purser.ask('POST', `/v1/compute/upload?path=x&id=${id}`, {
    token,
    body: { id, path: 'x', content_base64: '' },
  });
  assert.match(json.body.error.message, /unknown query parameter/, 'JSON names them in its body');
  const none = await purser.ask('POST', '/v1/compute/upload', { token, body: 'x', headers: { 'content-type': BYTES } });
  assert.match(none.body.error.message, /^id: is required/);
  const zipped = await upload('w', 'x', BYTES, { headers: { 'content-encoding': 'gzip' } });
  assert.equal(zipped.status, 415);
  assert.equal(await sh('find . -type f'), './file\n', 'and nothing is left of any');
});

test('another wallet reaches nothing, and neither does a lease that is over', async (t) => {
  const { purser, id, token, upload } = await openLocalLease(t);
  const other = await purser.openWallet();
  for (const type of [TAR, BYTES]) {
    const answer = await upload('x', archive(GOOD), type, { token: other.token });
    assert.deepEqual([answer.status, answer.body.error.code], [404, 'not_found']);
  }
  const headers = { accept: TAR };
  const asked = { token: other.token, body: { id, path: '.' }, headers };
  assert.equal((await purser.ask('POST', '/v1/compute/download', asked)).status, 404);
  await purser.ask('POST', '/v1/compute/stop', { token, body: { id } });
  assert.equal((await upload('x', archive(GOOD), TAR)).body.error.code, 'resource_not_active');
});

test('a client that goes, or sends nothing for a while, leaves no file and no process', async (t) => {
  for (const ends of ['goes', 'stalls', 'lies']) {
    const { purser, token, id, sh } = await openLocalLease(t, ends === 'stalls' ? { stallMilliseconds: 1500 } : {});
    const { hostname, port } = new URL(purser.url);
    for (const type of [BYTES, TAR]) {
      const socket = connect(Number(port), hostname);
      let said = '';
      socket.on('data', (it) => {
        said += it;
      });
      socket.on('error', () => {});
      const path = `left/${type.replace(/\W/g, '')}-${ends}`;
      const head = [
        `POST /v1/compute/upload?id=${id}&path=${path} HTTP/1.1`,
        `Host: ${hostname}`,
        `Authorization: Bearer ${token}`,
        `Content-Type: ${type}`,
        ends === 'lies' ? 'Content-Length: 100000' : 'Transfer-Encoding: chunked',
      ];
      socket.write(`${head.join('\r\n')}\r\n\r\n`);
      const piece = member({ name: 'begun', size: 5000, content: 'x'.repeat(512) });
      socket.write(ends === 'lies' ? piece : Buffer.concat([Buffer.from('400\r\n'), piece, Buffer.from('\r\n')]));
      // One that stalls may be refused before it is looked at.
      if (ends !== 'stalls')
        await until('it is being written', async () => (await sh(`ls left 2>/dev/null; true`)).includes(path.slice(5)));
      if (ends === 'goes') socket.destroy();
      else if (ends === 'lies') socket.end();
      else {
        await until('it is refused', async () => said.includes('\r\n\r\n'));
        assert.match(said, /^HTTP\/1\.1 408 /);
        socket.destroy();
      }
      await until('nothing runs', async () => purser.app.activity.open(id) === 0);
      const left = await sh(
        `find left -name '*.purser-*' -o -name '.purser-*' 2>/dev/null; [ -f ${path} ] && echo whole; true`,
      );
      assert.equal(left, '', `${type} ${ends}`);
    }
  }
});
