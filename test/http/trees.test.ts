import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import test from 'node:test';
import { openLine } from '../helper/line.ts';
import { until } from '../helper/waiting.ts';
import { BYTES, openLocalLease, TAR, treeOf } from './trees-shared.ts';

const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

test('a tree goes up in one call and comes back as it was', async (t) => {
  const { purser, token, id, upload, sh } = await openLocalLease(t);
  for (const format of ['gnu', 'pax', 'ustar', 'v7']) {
    const long = format === 'gnu' || format === 'pax' ? `${'d'.repeat(90)}/${'e'.repeat(120)}/` : 'd/e/';
    const { root, pack } = treeOf(
      t,
      { 'a.txt': 'a', [`${long}b.bin`]: randomBytes(100_000), 'ü ö': '', 'x/y/z': 'z' },
      format,
    );
    execFileSync(
      'sh',
      ['-c', 'ln -s a.txt link; ln a.txt hard; chmod 750 x; chmod 755 a.txt; touch -d @1234567890 a.txt'],
      {
        cwd: root,
      },
    );
    const packed = pack();
    const answer = await upload(`work/${format}`, packed, TAR);
    assert.deepEqual(
      [answer.status, answer.body],
      [
        200,
        {
          id,
          path: `work/${format}`,
          bytes: packed.length,
          sha256: sha256(packed),
          entries: format.length ? answer.body.entries : 0,
        },
      ],
      answer.text,
    );
    const look =
      'find . | sort | while read -r it; do stat -c "%n %F %a %Y" "$it"; [ ! -f "$it" ] || sha256sum < "$it"; done';
    const there = (await sh(`cd work/${format} && ${look}`)).split('\n').slice(1);
    const here = execFileSync('sh', ['-c', look], { cwd: root, encoding: 'utf8' }).split('\n').slice(1);
    assert.deepEqual(there, here, 'the directory itself is left as it is');
    assert.equal(
      await sh(`[ work/${format}/a.txt -ef work/${format}/hard ] && readlink work/${format}/link`),
      'a.txt\n',
    );
    const back = await fetch(`${purser.url}/v1/compute/download`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', accept: TAR },
      body: JSON.stringify({ id, path: `work/${format}` }),
    });
    assert.deepEqual([back.status, back.headers.get('content-type')], [200, TAR]);
    const listed = execFileSync('tar', ['-tf', '-'], {
      input: Buffer.from(await back.arrayBuffer()),
      encoding: 'utf8',
    });
    const own = execFileSync('tar', ['-tf', '-'], { input: packed, encoding: 'utf8' });
    assert.deepEqual(listed.split('\n').sort(), own.split('\n').sort());
  }
});

test('a file of more than 8 MiB goes up as bytes', async (t) => {
  const { id, upload, sh } = await openLocalLease(t);
  const content = randomBytes(20_000_000);
  const answer = await upload('big.bin', content, BYTES);
  assert.deepEqual(answer.body, { id, path: 'big.bin', bytes: content.length, sha256: sha256(content) });
  assert.equal((await sh('sha256sum < big.bin')).split(' ')[0], sha256(content));
  assert.equal((await upload('empty', Buffer.alloc(0), BYTES)).body.bytes, 0);
  assert.equal(await sh('wc -c < empty; ls'), '0\nbig.bin\nempty\ntmp\n');
});

test('a download of a tree ends at limits.download_bytes, before it begins or with its connection', async (t) => {
  const { purser, token, id, upload, sh } = await openLocalLease(t, {
    change: (settings) => ({ ...settings, limits: { ...settings.limits, download_bytes: 1_000_000 } }),
  });
  await upload('some/big.bin', randomBytes(2_000_000), BYTES);
  const headers = { accept: TAR };
  const over = await purser.ask('POST', '/v1/compute/download', { token, body: { id, path: 'some' }, headers });
  assert.deepEqual([over.status, over.body.error.code], [413, 'payload_too_large']);
  await sh('mkdir holes && dd of=holes/h bs=1 seek=2000000 count=0');
  const cut = purser.ask('POST', '/v1/compute/download', { token, body: { id, path: 'holes' }, headers });
  await assert.rejects(cut, /terminated|closed|socket/, 'what the disk does not tell is found on the way');
  const line = await openLine(purser.url);
  const asked = JSON.stringify({ id, path: 'holes' });
  const lines = [`Authorization: Bearer ${token}`, `Accept: ${TAR}`, 'Content-Type: application/json'];
  line.write(
    `POST /v1/compute/download HTTP/1.0\r\n${lines.join('\r\n')}\r\nContent-Length: ${asked.length}\r\n\r\n${asked}`,
  );
  assert.equal(await line.ended, 'ECONNRESET', 'the end of its connection would be that of the archive');
  const none = await purser.ask('POST', '/v1/compute/download', { token, body: { id, path: 'none' }, headers });
  assert.equal(none.status, 404);
  await until('nothing runs', () => purser.app.activity.open(id) === 0);
});

test('a client that leaves a download ends it inside', async (t) => {
  const { purser, token, id, sh } = await openLocalLease(t);
  await sh('mkdir big && dd of=big/h bs=1 seek=900000000 count=0');
  const leave = new AbortController();
  const answer = await fetch(`${purser.url}/v1/compute/download`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', accept: TAR },
    body: JSON.stringify({ id, path: 'big' }),
    signal: leave.signal,
  });
  await answer.body?.getReader().read();
  assert.equal(purser.app.activity.open(id), 1);
  leave.abort();
  await until('nothing runs', () => purser.app.activity.open(id) === 0);
  await until('tar is dead', async () => !(await sh('ps -e -o args')).includes('tar cf - .'));
});

test('an image without tar says so, and writes nothing', async (t) => {
  const { purser, token, id, upload, sh } = await openLocalLease(t);
  const { guest } = purser.app.slots.list[0]?.backend ?? assert.fail();
  const { session } = guest;
  await sh('mkdir bin old; for it in sh head cat id find mkdir sleep grep; do ln -s "$(command -v $it)" bin/; done');
  guest.session = (ref, order) => session(ref, { ...order, command: `export PATH=$PWD/bin\n${order.command}` });
  const up = await upload('new', treeOf(t, { a: 'a' }).pack(), TAR);
  assert.deepEqual([up.status, up.body.error.code], [400, 'invalid_request']);
  assert.match(up.body.error.message, /has no `tar`, which this request needs/);
  const asked = { token, body: { id, path: 'old' }, headers: { accept: TAR } };
  const down = await purser.ask('POST', '/v1/compute/download', asked);
  assert.match(down.body.error.message, /has no `tar`, which this request needs/);
  assert.equal(await sh('ls'), 'bin\nold\ntmp\n');
});
