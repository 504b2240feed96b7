import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import type { Snapshots } from '../../src/compute/backend.ts';
import type { LxdInstance } from '../../src/compute/engines/lxd/describe.ts';
import { COPYING_POOL } from './engines/lxd-copying.ts';
import { openEngineProxy } from './engines/proxy.ts';
import { hide, LIMITS, MEBIBYTE, openWith, subjectOf, untilIdle } from './lxd-snapshot-shared.ts';
import { conformSnapshots, GIB, nameOf, now, openOn } from './snapshot-shared.ts';

const open = (t: TestContext) => openWith(t);

conformSnapshots('lxd', open);

test('lxd: a snapshot and a machine made from it have nothing of the lease, of Purser or of templates', async (t) => {
  const subject = await openOn(t, open);
  if (!subject) return;
  const { machine, take, lxd } = subject;
  const placeholder = randomBytes(16).toString('hex');
  const authority = '-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n';
  const one = await machine({ secrets: { variables: { TOKEN: placeholder }, authority } });
  assert.equal(await one.sh('echo $TOKEN; ls -a / | grep -c purser'), `${placeholder}\n3`);
  const metadata = `/1.0/instances/${one.ref}/metadata`;
  const planted = { '/tmp/planted': { when: ['copy', 'create', 'start'], template: 'planted.tpl', properties: {} } };
  await lxd.api.ask('POST', `${metadata}/templates?path=planted.tpl`, Buffer.from('planted'));
  await lxd.api.ask('PUT', metadata, { ...(await lxd.api.ask<object>('GET', metadata)), templates: planted });

  const { tag } = await take(one.ref);
  const all = await lxd.api.ask<LxdInstance[]>('GET', '/1.0/instances?recursion=1');
  const snapshot = all.filter((it) => it.config?.['user.purser.snapshot'] === tag);
  assert.equal(snapshot.length, 1, 'the instance of its template is gone');
  const keys = Object.keys(snapshot[0]?.config ?? {}).filter((key) => !/^(volatile|image)\./.test(key));
  assert.deepEqual(keys.sort(), [
    'boot.autostart',
    'user.purser.created',
    'user.purser.snapshot',
    'user.purser.snapshot_bytes',
    'user.purser.snapshot_disk_bytes',
    'user.purser.snapshot_disk_gb',
  ]);
  assert.ok(!JSON.stringify(snapshot).includes(placeholder));

  const two = await machine({ snapshot: tag });
  assert.equal(await two.sh('echo "<$TOKEN$SSL_CERT_FILE>"; ls -a / | grep purser; ls /tmp'), '<>\n.purser-watchdog');
  const { config } = await lxd.api.ask<LxdInstance>('GET', `/1.0/instances/${two.ref}`);
  assert.equal(config?.['user.purser.snapshot'], undefined);
});

const writable = (mebibytes: number) => `fallocate -l ${mebibytes}M /tmp/more && echo fits && rm /tmp/more`;

test('lxd: disk_gb holds in a machine made from a snapshot, and on a smaller disk than it takes none is made', async (t) => {
  const two = await openOn(t, (t) => openWith(t, { limits: { ...LIMITS, disk_gb: 2 } }));
  const one = await openOn(t, open);
  if (!two || !one) return;
  const first = await two.machine();
  assert.equal(await first.sh('fallocate -l 600M /tmp/a && echo kept'), 'kept');
  const small = await two.take(first.ref);
  assert.equal(await first.sh('fallocate -l 423M /tmp/b && echo kept'), 'kept');
  const large = await two.take(first.ref); // With its image more than a GiB, without it less.
  await two.backend.destroy(first.ref);

  const same = await two.machine({ snapshot: small.tag });
  assert.match(await same.sh(writable(1600)), /quota exceeded/i);
  assert.equal(await same.sh(writable(1300)), 'fits');
  await two.backend.destroy(same.ref);
  const smaller = await one.machine({ snapshot: small.tag });
  assert.match(await smaller.sh(writable(500)), /quota exceeded/i);
  assert.equal(await smaller.sh(writable(300)), 'fits');

  const quote = await one.backend.quote(one.spec);
  const tag = nameOf('res');
  const refused = await one.backend.create({ tag, quote, deadline: now() + 60, snapshot: large.tag });
  assert.deepEqual(
    [refused.kind, 'code' in refused && refused.code, 'reason' in refused && refused.reason],
    ['refused', 'lease_limit_exceeded', 'What it is made from is larger than its disk. Nothing was charged.'],
  );
  assert.deepEqual(await one.backend.find(tag), []);
});

test('lxd: a snapshot is paid by all that its disk holds, also beyond its files', async (t) => {
  const opened = await openOn(t, open);
  if (!opened) return;
  const { machine, take, snapshots, lxd } = opened;
  const instanceOf = async (tag: string) => {
    const all = await lxd.api.ask<LxdInstance[]>('GET', '/1.0/instances?recursion=1');
    const own = all.filter((it) => JSON.stringify(it).includes(tag));
    assert.equal(own.length, 1, 'nothing is left of measuring it');
    return own[0] as LxdInstance;
  };
  const heldBy = (name: string) => {
    const place = join(lxd.data, 'storage-pools', COPYING_POOL, 'containers', name);
    const shown = execFileSync('btrfs', ['qgroup', 'show', '-f', '--raw', place], { encoding: 'utf8' });
    return Number(/^\d+\/\d+ +(\d+)/m.exec(shown)?.[1]);
  };
  const one = await machine();
  const plain = await take(one.ref);
  const { config } = await instanceOf(plain.tag);
  const image = Number(config?.['user.purser.snapshot_disk_bytes']) - plain.bytes;

  assert.equal(await one.sh(hide(40)), '1');
  const little = await take(one.ref);
  assert.ok(little.bytes - plain.bytes < MEBIBYTE, `${little.bytes} bytes`);
  for (const files of [1, 3]) {
    assert.match(await one.sh(`rm /tmp/hidden*; ${hide(200, files)}`), new RegExp(`${files}$`));
    const { tag, bytes } = await take(one.ref);
    const held = heldBy((await instanceOf(tag)).name) - image;
    t.diagnostic(`${held} bytes are held, and ${bytes} paid`);
    assert.ok(held > (files * 200 - 2) * MEBIBYTE, `${held} bytes are held`);
    assert.ok(bytes >= held && bytes <= (held * 9) / 8, `${held} bytes are held, and ${bytes} paid`);
  }
  const tag = nameOf('snap');
  const taken = await snapshots.take({ ref: one.ref, tag, isRunning: true, bytesMax: 500 * MEBIBYTE });
  assert.deepEqual([taken.kind, 'code' in taken && taken.code], ['refused', 'lease_limit_exceeded']);
  assert.deepEqual([await snapshots.list(tag), await one.sh('echo runs')], [[], 'runs']);
});

test('lxd: of a full disk no snapshot is taken, and the refusal says so', async (t) => {
  const opened = await openOn(t, open);
  if (!opened) return;
  const { machine, snapshots } = opened;
  const one = await machine();
  assert.match(
    await one.sh(
      'fallocate -l 1000M /tmp/full; head -c 50000000 /dev/zero >/tmp/rest; head -c 20000 /dev/zero >/tmp/last',
    ),
    /quota/i,
  );
  const tag = nameOf('snap');
  const taken = await snapshots.take({ ref: one.ref, tag, isRunning: true, bytesMax: GIB });
  assert.deepEqual(
    [taken.kind, 'code' in taken && taken.code, 'reason' in taken && taken.reason],
    ['refused', 'lease_limit_exceeded', 'Its disk is full, and LXD has to write something there'],
  );
  assert.deepEqual([await snapshots.list(tag), await one.sh('rm /tmp/full; echo runs')], [[], 'runs']);
});

test('lxd: what a tenant puts in the place of a file of Purser or of its image breaks nothing', async (t) => {
  const opened = await openOn(t, open);
  if (!opened) return;
  const { machine, take, snapshots, backend } = opened;
  const one = await machine();
  await one.sh('rm /.purser-watchdog; mkdir -p /.purser-watchdog/x');
  const tag = nameOf('snap');
  const taken = await snapshots.take({ ref: one.ref, tag, isRunning: true, bytesMax: GIB });
  assert.equal(taken.kind, 'refused', JSON.stringify(taken));
  assert.deepEqual(await snapshots.list(tag), []);

  await one.sh('rm -r /.purser-watchdog; mkdir -p /out /etc/ssl/certs; ln -s /out/watchdog /.purser-watchdog');
  await one.sh('mkfifo /etc/ssl/certs/ca-certificates.crt; ln -s /etc/ssl/certs/ca-certificates.crt /.purser-ca.pem');
  const kept = await take(one.ref);
  // Where LXD opened the pipe, this create would have no end, and nor would the removal.
  const two = await machine({ snapshot: kept.tag, secrets: { variables: {}, authority: 'its authority' } });
  assert.equal(
    await two.sh('cat /.purser-ca.pem; echo; ls /out; test -p /etc/ssl/certs/ca-certificates.crt && echo pipe'),
    'its authority\npipe',
  );
  await backend.destroy(two.ref);
});

test('lxd: a take whose lease does not let its processes be continued leaves no copy', async (t) => {
  const opened = await openOn(t, open);
  if (!opened) return;
  const { machine, snapshots } = opened;
  const one = await machine();
  await one.sh('chmod 000 /');
  const tag = nameOf('snap');
  const order = { ref: one.ref, tag, isRunning: true, bytesMax: GIB };
  await snapshots.take(order).catch((error) => t.diagnostic(`unknown: ${error.message}`));
  assert.deepEqual(await snapshots.list(tag), [], 'nobody pays for it, and only a sweep would remove it');
});

test('lxd: a lease with secrets whose snapshot has too large a file of roots is refused', async (t) => {
  const opened = await openOn(t, open);
  if (!opened) return;
  const { machine, take, backend, spec } = opened;
  const one = await machine();
  await one.sh('mkdir -p /etc/ssl/certs; truncate -s 5M /etc/ssl/certs/ca-certificates.crt');
  const { tag: snapshot } = await take(one.ref);
  const tag = nameOf('res');
  const secrets = { variables: {}, authority: 'its authority' };
  const made = await backend.create({ tag, quote: await backend.quote(spec), deadline: now() + 60, snapshot, secrets });
  assert.equal(made.kind, 'refused', JSON.stringify(made));
  assert.deepEqual(await backend.find(tag), []);
});

test('lxd: what runs stands still while LXD copies its disk', async (t) => {
  const opened = await openOn(t, open);
  if (!opened) return;
  const { machine, lxd } = opened;
  const one = await machine();
  const seconds = randomInt(10 ** 8);
  await one.sh(`sleep ${seconds} >/dev/null 2>&1 &`);
  const command = `sleep\0${seconds}\0`;
  const isIt = (process: string) => {
    try {
      return readFileSync(`${process}/cmdline`, 'utf8') === command;
    } catch {
      return false; // It has ended.
    }
  };
  const sleeper = globSync('/proc/[0-9]*').find(isIt);
  const state = () => /\) (.)/.exec(readFileSync(`${sleeper}/stat`, 'utf8'))?.[1];
  const proxy = await openEngineProxy(t, lxd);
  const { backend } = subjectOf(proxy);
  t.after(() => backend.close());
  const snapshots = backend.guest.snapshots as Snapshots;
  const states: (string | undefined)[] = [state()];
  const [first = '', second = ''] = [nameOf('snap'), nameOf('snap')];
  const take = (tag: string) => snapshots.take({ ref: one.ref, tag, isRunning: true, bytesMax: GIB });
  assert.equal((await take(first)).kind, 'taken'); // Its image is counted from now on.
  const strike = () => void states.push(state());
  proxy.watch({ request: 'POST /1.0/instances', moment: 'before it is answered', strike });
  await assert.rejects(take(second));
  states.push(state());
  assert.deepEqual(states, ['S', 'T', 'S']);
  await untilIdle(lxd);
  for (const tag of [first, second]) await snapshots.remove(tag);
});

test('lxd: no snapshot is taken on a pool that copies every file, and doctor says that', async (t) => {
  const opened = await openOn(t, (t) => openWith(t, { pool: 'default' }));
  if (!opened) return;
  const { machine, snapshots, backend } = opened;
  const said = (await backend.doctor.check()).find(({ name }) => name === 'disk');
  assert.deepEqual([said?.ok, said?.detail.slice(0, 35)], [false, 'no snapshot is taken on the driver ']);
  const { ref } = await machine();
  const taken = await snapshots.take({ ref, tag: nameOf('snap'), isRunning: true, bytesMax: GIB });
  assert.deepEqual(
    [taken.kind, 'reason' in taken && taken.reason],
    ['refused', 'The driver dir of its storage pool copies every file'],
  );
});
