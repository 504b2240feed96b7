import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { join } from 'node:path';
import test, { after, type TestContext } from 'node:test';
import { newId } from '../../src/base/id.ts';
import type { Backend, Created, Machine } from '../../src/compute/backend.ts';
import { nameOf } from '../../src/compute/engines/lxd/describe.ts';
import { collect } from '../../src/compute/machine/collect.ts';
import { runCommand } from '../../src/compute/machine/command.ts';
import { selfTest } from '../../src/compute/self-test.ts';
import { freePort } from '../helper/free-port.ts';
import { UNHURRIED_MILLISECONDS, until } from '../helper/waiting.ts';
import { conform } from './conformance.ts';
import { LXD_PREFIX, type Lxd, lxdSubject, openLxd } from './engines/lxd.ts';
import { openEngineProxy } from './engines/proxy.ts';
import { makeCertificates } from './engines/remote.ts';
import { workInGuest } from './guest.ts';

let shared: Lxd | undefined;
after(() => shared?.stop());

async function openShared(t: TestContext): Promise<Lxd | undefined> {
  shared ??= await openLxd(t);
  return shared;
}

/** A backend on the shared LXD; `change` changes its settings. */
async function openSubject(t: TestContext, change: object = {}) {
  const lxd = await openShared(t);
  if (!lxd) return undefined;
  const subject = lxdSubject(lxd.socket, change);
  t.after(() => subject.backend.close());
  return { ...subject, lxd };
}

conform('lxd', (t) => openSubject(t));
workInGuest('lxd', (t) => openSubject(t));

const now = () => Math.floor(Date.now() / 1000);
const freshTag = () => `${LXD_PREFIX}res-${newId('res').slice(4)}`;
type Opened = NonNullable<Awaited<ReturnType<typeof openSubject>>>;

/** A lease of a test, which ends with it. */
async function lease(t: TestContext, { backend, spec, lxd }: Pick<Opened, 'backend' | 'spec' | 'lxd'>, seconds = 600) {
  const tag = freshTag();
  const deadline = now() + seconds;
  const created = await backend.create({ tag, quote: await backend.quote(spec), deadline });
  assert.deepEqual(created, { kind: 'created', ref: nameOf(tag) });
  const ref = nameOf(tag);
  t.after(async () => {
    const last = lxdSubject(lxd.socket); // The one under test may be closed.
    await last.backend.destroy(ref);
    await last.backend.close();
  });
  const sh = async (command: string, timeoutSeconds = 60) => {
    const { stdout, stderr, exitCode } = await backend.guest.exec(ref, {
      command,
      timeoutSeconds,
      streamBytesMax: 65_536,
    });
    return `${stdout}${stderr}${exitCode}`;
  };
  return { tag, ref, deadline, sh };
}

/** Prints the number of processes inside whose command line begins with this one. */
const count = (command: string) =>
  `for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep '^${command}'; echo; done | grep -c .`;

/** The process outside that is process 1 of an instance. */
const pidOf = async ({ api }: Lxd, ref: string) =>
  (await api.ask<{ pid: number }>('GET', `/1.0/instances/${ref}/state`)).pid;

test('lxd: a lease is limited and unprivileged, and sees no device, network or socket of the host', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { backend, spec } = opened;
  const { ref, sh } = await lease(t, opened);
  assert.equal(
    await sh("awk '/^Cap(Prm|Eff|Bnd)|^NoNewPrivs/ { print $2 }' /proc/1/status /proc/self/status"),
    [...Array(2).fill([...Array(3).fill('0'.repeat(16)), '1'].join('\n')), '0'].join('\n'),
  );
  assert.equal(await sh('id -u; pwd; echo $HOME; ls /sys/class/net'), '1000\n/home/lease\n/home/lease\nlo\n0');
  assert.equal(await sh('ls -d /dev/lxd /dev/incus /dev/sda /dev/vda /dev/kvm 2>/dev/null'), '1');
  const [inside, outside] = (await sh('cat /proc/self/uid_map')).trim().split(/\s+/);
  assert.ok(inside === '0' && Number(outside) >= 65_536, 'root inside is nobody outside');
  assert.equal(await backend.doctor.unlimited?.(ref, await backend.quote(spec)), undefined);
  assert.match(await sh('dd if=/dev/zero of=/dev/null bs=300M count=1'), /137$/, 'more than its memory kills it');
  assert.match(await sh('for i in $(seq 80); do sleep 1 & done; wait'), /can't fork/);
  assert.match(await sh('mount -t tmpfs none /tmp'), /denied|permitted/);
  const { config } = await opened.lxd.api.ask<{ config: Record<string, string> }>('GET', `/1.0/instances/${ref}`);
  assert.deepEqual(
    ['privileged', 'nesting', 'devlxd', 'idmap.isolated'].map((it) => config[`security.${it}`]),
    ['false', 'false', 'false', 'true'],
  );
  assert.deepEqual([config['boot.autostart'], config['user.purser.cpus']], ['false', '0.5']);
  // A limit that is not in force is named.
  await opened.lxd.api.ask('PATCH', `/1.0/instances/${ref}`, { config: { 'limits.processes': '' } });
  assert.match(
    (await backend.doctor.unlimited?.(ref, await backend.quote(spec))) ?? '',
    /nothing limits its processes/,
  );
});

for (const user of [1000, 0])
  test(`lxd: a tenant who is user ${user} can neither end nor move the watchdog`, async (t) => {
    const opened = await openSubject(t, { user });
    if (!opened) return;
    const { backend } = opened;
    const { ref, sh, deadline } = await lease(t, opened);
    assert.equal(await sh('id -u'), `${user}\n0`);
    await sh('kill -9 1; kill -TERM 1; kill -STOP 1; rm -f /.purser-watchdog; : > /proc/1/fd/9; : > /proc/1/mem');
    assert.notEqual((await sh('/proc/1/exe 9999999999')).at(-1), '0');
    assert.match(await sh('ls -l /proc/1/fd /proc/1/root'), /denied/);
    assert.doesNotMatch(await sh('setuidgid 63541 id -u; true'), /^63541/m, 'nobody becomes its user');
    const fresh = lxdSubject(opened.lxd.socket, { user });
    t.after(() => fresh.backend.close());
    assert.equal((await fresh.backend.inspect(ref))?.deadline, deadline, 'another process reads the same deadline');
    if (user === 0) {
      // Whoever puts something in the place of the shell does not get it run as the watchdog's user.
      const shell = '#!/tmp/busybox sh\n/tmp/busybox id -u >> /tmp/ran\nexec /tmp/busybox sh "$@"\n';
      await backend.guest.upload(ref, '/tmp/shell', Buffer.from(shell));
      await sh('cp /bin/busybox /tmp/busybox; : > /tmp/ran; chmod 777 /tmp/ran /tmp/shell; mv /tmp/shell /bin/sh');
      assert.deepEqual(await backend.extend(ref, now() + 300), { kind: 'done' });
      assert.match(await sh('cat /tmp/ran'), /^(0\n)+0$/);
    }
    assert.deepEqual(await backend.extend(ref, now() + 10), { kind: 'done' });
    await until('its deadline has ended it', async () => (await backend.inspect(ref))?.state === 'ended');
  });

test('lxd: a lease ends at its deadline while Purser and LXD are dead', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { backend, lxd } = opened;
  const { ref, deadline } = await lease(t, opened, 30);
  const pid = await pidOf(lxd, ref);
  await lxd.end('SIGKILL');
  assert.ok(existsSync(`/proc/${pid}`), 'it outlives the daemon');
  await assert.rejects(backend.inspect(ref));
  await until('it has ended', async () => !existsSync(`/proc/${pid}`));
  assert.ok(Date.now() / 1000 >= deadline - 1, 'not before its deadline');
  await lxd.start();
  assert.equal((await backend.inspect(ref))?.state, 'ended');
  assert.deepEqual(await backend.extend(ref, now() + 600), { kind: 'refused', reason: 'Instance is not running' });
});

test('lxd: a lease outlives a restart of the daemon, and says its deadline again', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { lxd } = opened;
  const { ref, deadline, sh } = await lease(t, opened);
  // The clock of a limit is a `sleep` as well, of 60 here.
  const broken = opened.backend.guest.exec(ref, {
    command: 'echo half; sleep 5678',
    timeoutSeconds: 60,
    streamBytesMax: 100,
  });
  const refused = assert.rejects(broken, 'half of its output is not an answer');
  await until('it runs', async () => (await sh(count('sleep 5678'))).startsWith('1'));
  await lxd.end();
  await refused;
  await lxd.start();
  const later = lxdSubject(lxd.socket);
  t.after(() => later.backend.close());
  assert.deepEqual(await later.backend.inspect(ref), { ref, state: 'running', deadline });
});

test('lxd: two leases are different users outside, and see nothing of each other', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const [one, two] = [await lease(t, opened), await lease(t, opened)];
  const map = async ({ sh }: typeof one) => (await sh('cat /proc/self/uid_map')).trim().split(/\s+/)[1];
  assert.notEqual(await map(one), await map(two));
  await one.sh('echo secret > /tmp/mine; nohup sleep 4321 >/dev/null 2>&1 &');
  assert.equal(await two.sh(`cat /tmp/mine 2>/dev/null; ${count('sleep 4321')}`), '0\n1');
  assert.equal(await two.sh('ping -c 1 -W 1 169.254.169.254 >/dev/null 2>&1; echo $?; ip route'), '1\n0');
});

test('lxd: leases that are made at once all start, each with users of its own, also of two backends', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const other = { ...opened, ...lxdSubject(opened.lxd.socket) };
  t.after(() => other.backend.close());
  const leases = await Promise.all(Array.from({ length: 10 }, (_, at) => lease(t, at % 2 ? other : opened)));
  const maps = await Promise.all(leases.map(({ sh }) => sh('cat /proc/self/uid_map')));
  assert.equal(new Set(maps).size, leases.length, maps.join());
});

test('lxd: a session has separate streams, an end of its input, an exit code, and is killed whole', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { backend } = opened;
  const { ref, sh } = await lease(t, opened);
  const copied = await backend.guest.session(ref, { command: 'cat; echo err >&2; exit 9', terminal: undefined });
  const said = Promise.all([collect(copied.stdout, 10_000_000), collect(copied.stderr ?? copied.stdout, 100)]);
  const sent = Buffer.alloc(3_000_000, 'abcdefg');
  for (let at = 0; at < sent.length; at += 100_000)
    if (!copied.stdin.write(sent.subarray(at, at + 100_000))) await once(copied.stdin, 'drain');
  copied.stdin.end();
  assert.deepEqual(await copied.ended, { code: 9 });
  const [out, err] = await said;
  assert.ok(out.bytes.equals(sent));
  assert.equal(err.bytes.toString(), 'err\n');

  const killed = await backend.guest.session(ref, { command: 'setsid sleep 7654 & sleep 7654', terminal: undefined });
  await until('it runs', async () => (await sh(count('sleep 7654'))).startsWith('2'));
  killed.kill();
  await until('all of it is dead', async () => (await sh(count('sleep 7654'))).startsWith('0'));
  const end = await killed.ended;
  assert.deepEqual(end, { code: 137 });
});

test('lxd: a terminal has a size that can change, one stream, and a background process holds nothing up', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { backend } = opened;
  const { ref } = await lease(t, opened);
  const session = await backend.guest.session(ref, {
    command: undefined,
    terminal: { term: 'vt100', columns: 81, rows: 23 },
  });
  let said = '';
  session.stdout.on('data', (chunk: Buffer) => {
    said += chunk;
  });
  assert.equal(session.stderr, undefined);
  session.stdin.write('echo "$TERM:$(stty size)"\n');
  await until('it says its size', async () => /vt100:23 81/.test(said));
  session.resize(101, 33);
  await until('it has another size', async () => {
    session.stdin.write('stty size\n');
    return /33 101/.test(said);
  });
  session.stdin.write('sleep 600 & exit 3\n');
  assert.deepEqual(await session.ended, { code: 3 });
  const command = 'sleep 600 & echo there';
  const { stdout, exitCode } = await backend.guest.exec(ref, { command, timeoutSeconds: 300, streamBytesMax: 100 });
  assert.deepEqual([stdout.toString(), exitCode], ['there\n', 0], 'what it left behind is not waited for');
});

test('lxd: what nobody reads stays with the command', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { backend } = opened;
  const { ref, sh } = await lease(t, opened);
  const command = 'dd if=/dev/zero bs=65536 count=1600 2>/dev/null; echo done > /tmp/done';
  const session = await backend.guest.session(ref, { command, terminal: undefined });
  session.stderr?.resume();
  const memory = process.memoryUsage().rss;
  await new Promise((resolve) => setTimeout(resolve, 1500));
  assert.equal(await sh('ls /tmp/done 2>/dev/null'), '1', 'it waits for its reader');
  assert.ok(process.memoryUsage().rss - memory < 60_000_000);
  const { bytes, truncated } = await collect(session.stdout, 1000);
  assert.deepEqual([bytes.length, truncated, await session.ended], [1000, true, { code: 0 }]);
});

test('lxd: the same tag makes one machine, and a name that somebody else has is a clear no', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { backend, spec, lxd } = opened;
  const { tag, ref } = await lease(t, opened);
  const order = { tag, quote: await backend.quote(spec), deadline: now() + 900 };
  const before = (await backend.inspect(ref))?.deadline;
  assert.deepEqual(await backend.create(order), { kind: 'created', ref });
  assert.equal((await backend.inspect(ref))?.deadline, before);
  // A copy has the configuration of a lease, and is not ours.
  const copy = { name: 'somebodys', type: 'container', source: { type: 'copy', source: ref } };
  await lxd.api.run('POST', '/1.0/instances', copy, 60_000);
  const other = freshTag();
  const theirs = { name: nameOf(other), type: 'container', source: { type: 'copy', source: ref } };
  await lxd.api.run('POST', '/1.0/instances', theirs, 60_000);
  t.after(async () => {
    for (const name of ['somebodys', nameOf(other)])
      await lxd.api.run('DELETE', `/1.0/instances/${name}`, undefined, 60_000);
  });
  assert.deepEqual(
    (await backend.listOwned(LXD_PREFIX)).map((it) => it.ref),
    [ref],
  );
  assert.deepEqual(await backend.find(other), []);
  assert.equal((await backend.create({ ...order, tag: other })).kind, 'refused');
});

test('lxd: offers are counted, have images of their own, and what is not there is a clear no', async (t) => {
  const offer = { id: 'one', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: 1n, count: 1 };
  const offers = [offer, { ...offer, id: 'other', image: 'nowhere' }];
  const change = { offers, prices: undefined, limits: { max_seconds: 3600 } };
  const opened = await openSubject(t, change);
  if (!opened) return;
  const { backend } = opened;
  const spec = { offer_id: 'one', disk_gb: 5, max_seconds: 600 };
  const { ref, sh } = await lease(t, { backend, spec, lxd: opened.lxd });
  assert.equal(await sh('echo x'), 'x\n0');
  const available = async () =>
    Object.fromEntries((await backend.offers(UNHURRIED_MILLISECONDS)).map((it) => [it.offerId, it.available]));
  assert.deepEqual(await available(), { one: false, other: false }, 'one is leased, and the other has no image');
  const create = async (id: string): Promise<Created> =>
    backend.create({
      tag: freshTag(),
      quote: await backend.quote({ ...spec, offer_id: id }),
      deadline: now() + 600,
    });
  const full = await create('one');
  assert.ok(full.kind === 'refused' && full.code === 'capacity_unavailable', JSON.stringify(full));
  const lacking = await create('other');
  assert.ok(lacking.kind === 'refused' && /alias not found/.test(lacking.words ?? ''), JSON.stringify(lacking));
  await backend.destroy(ref);
  assert.deepEqual(await available(), { one: true, other: false });

  const vast = lxdSubject(opened.lxd.socket, { ...change, offers: [{ ...offer, max_disk_gb: 10_000_000 }] }).backend;
  t.after(() => vast.close());
  const large = { offer_id: 'one', disk_gb: 10_000_000, max_seconds: 600 };
  assert.equal(await vast.freeFor?.(large), 0);
  assert.equal(await vast.freeFor?.({ ...large, disk_gb: 1 }), 1);
  const refused = await vast.create({ tag: freshTag(), quote: await vast.quote(large), deadline: now() + 600 });
  assert.ok(refused.kind === 'refused' && refused.code === 'capacity_unavailable', JSON.stringify(refused));
  assert.match(refused.reason, /less than 10000000 GB of disk are free/);
});

test('lxd: doctor checks what a lease depends on, and its trial leaves nothing', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { backend } = opened;
  const findings = await backend.doctor.check();
  assert.deepEqual(
    findings.map((it) => [it.name, it.ok]),
    ['engine', 'project', 'disk', 'image', 'limits', 'network', 'restart'].map((name) => [name, true]),
    JSON.stringify(findings),
  );
  assert.match(findings[0]?.detail ?? '', /^LXD \d+\.\d+/);
  assert.match(findings[2]?.detail ?? '', /driver dir/);
  const trial = await selfTest({ backend, provisionSeconds: 60 }, 'inst_conformance', now);
  assert.ok(trial.ok, trial.detail);
  assert.deepEqual(await backend.listOwned(LXD_PREFIX), []);
  const wrong = lxdSubject(opened.lxd.socket, { image: 'nowhere', pool: 'nopool', project: 'noproject' });
  t.after(() => wrong.backend.close());
  const faults = (await wrong.backend.doctor.check()).filter((it) => !it.ok).map((it) => it.name);
  assert.deepEqual(faults, ['project', 'disk', 'image']);
  const nowhere = lxdSubject('unix:///nowhere/lxd.socket');
  t.after(() => nowhere.backend.close());
  assert.match((await nowhere.backend.doctor.check())[0]?.detail ?? '', /Is LXD or Incus running/);
});

test('lxd: over TLS a trusted certificate is needed, and the server must show the one that is pinned', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { api, directory, data } = opened.lxd;
  const certificates = join(directory, 'tls');
  mkdirSync(certificates);
  const { client, server } = makeCertificates(certificates);
  const port = await freePort();
  await api.ask('PATCH', '/1.0', { config: { 'core.https_address': `127.0.0.1:${port}` } });
  t.after(() => api.ask('PATCH', '/1.0', { config: { 'core.https_address': '' } }));
  const socket = `https://127.0.0.1:${port}`;
  const over = (tls: object) => {
    const subject = lxdSubject(socket, { tls });
    t.after(() => subject.backend.close());
    return subject;
  };
  const first = async ({ backend }: ReturnType<typeof over>) => (await backend.doctor.check())[0];
  const { cert, key } = client;
  const right = over({ server: join(data, 'server.crt'), cert, key });
  assert.match((await first(right))?.detail ?? '', /does not trust Purser/);
  const [, der] = /-----BEGIN CERTIFICATE-----([\s\S]+?)-----END/.exec(readFileSync(cert, 'utf8')) ?? [];
  await api.ask('POST', '/1.0/certificates', { type: 'client', name: 'purser', certificate: der?.replace(/\s/g, '') });
  assert.deepEqual((await first(right))?.ok, true);
  const { sh } = await lease(t, { ...right, lxd: opened.lxd });
  assert.equal(await sh('seq 20000 | md5sum; exit 4'), `${createHash('md5').update(seq(20_000)).digest('hex')}  -\n4`);
  const wrong = over({ server: server.cert, cert, key });
  assert.match((await first(wrong))?.detail ?? '', /another certificate than the one that is pinned/);
  const refused = await wrong.backend.create({
    tag: freshTag(),
    quote: await wrong.backend.quote(wrong.spec),
    deadline: now(),
  });
  assert.equal(refused.kind, 'refused', 'nothing was sent');
});

const seq = (count: number) => Array.from({ length: count }, (_, index) => `${index + 1}\n`).join('');

/** The calls of a create, after what is asked first of a server. */
const CREATE_CALLS = 20;

test('lxd: wherever a create loses its connection, its outcome is true', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { lxd, spec } = opened;
  const proxy = await openEngineProxy(t, lxd);
  const outcomes = new Set<string>();
  for (const moment of ['before it arrives', 'before it is answered'] as const)
    for (let nth = 1; nth <= CREATE_CALLS; nth++) {
      const { backend } = lxdSubject(proxy.socket);
      let isStruck = false;
      proxy.watch({
        nth,
        moment,
        strike: () => {
          isStruck = true;
        },
      });
      const tag = freshTag();
      const created = await backend.create({ tag, quote: await backend.quote(spec), deadline: now() + 600 });
      outcomes.add(created.kind);
      const where = `${moment} ${nth}: ${proxy.asked.join(', ')}: ${JSON.stringify(created)}`;
      const found: Machine[] = await opened.backend.find(tag);
      if (created.kind === 'created') assert.equal(found[0]?.state, 'running', where);
      if (created.kind === 'refused') assert.deepEqual(found, [], where);
      await settled(opened.backend, tag);
      await backend.close();
      if (!isStruck) break;
    }
  assert.deepEqual([...outcomes].sort(), ['created', 'refused', 'unknown']);
});

/** Destroys what a create of unknown outcome has made, which may still be coming. */
async function settled(backend: Backend, tag: string): Promise<void> {
  await until('nothing is left of it', async () => {
    for (const { ref } of await backend.find(tag)) await backend.destroy(ref).catch(() => {});
    return (await backend.find(tag)).length === 0;
  });
}

test('lxd: the stream of a command that breaks is no answer', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { ref, sh } = await lease(t, opened);
  const proxy = await openEngineProxy(t, opened.lxd);
  for (const nth of [1, 2, 3, 4, 5, 6]) {
    const { backend } = lxdSubject(proxy.socket);
    proxy.watch({ nth, moment: 'before it is answered', strike: () => {} });
    const order = { command: 'echo whole', timeoutSeconds: 20, streamBytesMax: 100 };
    const answer = await backend.guest.exec(ref, order).catch((error: Error) => error);
    if (!(answer instanceof Error)) assert.equal(answer.stdout.toString(), 'whole\n', `${nth}`);
    const path = `/tmp/upload-${nth}`;
    proxy.watch({ nth, moment: 'before it is answered', strike: () => {} });
    const content = Buffer.alloc(500_000, nth);
    const isUploaded = await backend.guest.upload(ref, path, content).then(...[() => true, () => false]);
    const there = await sh(`ls ${path} 2>/dev/null && wc -c < ${path}`);
    if (isUploaded) assert.match(there, /500000/);
    else assert.ok(there === '1' || /500000/.test(there), there);
    await backend.close();
  }
});

/** A socket in front of LXD that breaks the connection on which LXD sends this text, right behind it. */
async function openBreaking(t: TestContext, { directory, data }: Lxd, text: string): Promise<string> {
  const path = join(directory, 'breaking.sock');
  const server = createServer((near) => {
    const far = connect({ path: join(data, 'unix.socket') });
    for (const it of [near, far]) it.on('error', () => {}).once('close', () => [near, far].map((it) => it.destroy()));
    near.pipe(far);
    far.on('data', (piece) => {
      if (piece.includes(text)) near.end(piece, () => near.destroy());
      else near.write(piece);
    });
  }).listen(path);
  await once(server, 'listening');
  t.after(() => server.close());
  return `unix://${path}`;
}

test('lxd: a command whose stream breaks in its middle is not answered with half of what it said', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { ref } = await lease(t, opened);
  const { backend } = lxdSubject(await openBreaking(t, opened.lxd, 'half'));
  t.after(() => backend.close());
  const limits = { timeoutSeconds: 20, streamBytesMax: 100 };
  // Both halves are put together inside: what is sent there comes back from LXD, too.
  const command = 'word=ha; echo $word"lf"; sleep 2; echo other';
  const lost = /the connection to a command was lost/;
  await assert.rejects(backend.guest.exec(ref, { command, ...limits }), lost);
  await assert.rejects(runCommand(backend, ref, { command, cwd: '/tmp', ...limits }), lost);
});
