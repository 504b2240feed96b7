import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after, before, type TestContext } from 'node:test';
import { Client } from 'ssh2';
import { type Backend, tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { openSshBackend, type SshBackend } from '../../src/compute/engines/ssh/ssh.ts';
import { until } from '../helper/waiting.ts';
import { conform, type Subject } from './conformance.ts';
import { openSshd, type Sshd } from './engines/sshd.ts';
import { workInGuest } from './guest.ts';

const CHIP = 'test-chip';
const SPEC = { chip: CHIP, max_seconds: 600 };
const INSTALLATION = `inst_${randomBytes(13).toString('hex')}`;
const now = () => Math.floor(Date.now() / 1000);
const freshTag = () => tagOf(INSTALLATION, `res_${randomBytes(13).toString('hex')}`);

let pair: [Sshd, Sshd] | undefined;
let leases: string;
before(() => {
  leases = mkdtempSync(join(tmpdir(), 'purser-leases-'));
});
const opened: Backend[] = [];
after(async () => {
  for (const it of opened) await it.close();
  for (const it of pair ?? []) await it.stop();
  rmSync(leases, { recursive: true, force: true });
});

function open(hosts: Sshd[], over: Partial<Sshd['host']> = {}, clock = now): SshBackend {
  const settings = {
    backend: 'ssh' as const,
    hosts: hosts.map(({ host }) => ({ ...host, ...over })),
    limits: { max_seconds: 86_400 },
    provision_seconds: 60,
  };
  const backend = openSshBackend(settings, { leases: mkdtempSync(join(leases, 'l-')), now: clock });
  opened.push(backend);
  return backend;
}

/** Two pool hosts for the suite: each has one tenant at a time. */
async function subject(t: TestContext): Promise<Subject | undefined> {
  if (!pair) {
    const [one, two] = [await openSshd(t, { shared: true }), await openSshd(t, { shared: true })];
    if (!one || !two) return undefined;
    pair = [one, two];
  }
  return {
    backend: open(pair),
    spec: SPEC,
    unknownSpec: { ...SPEC, chip: 'no-such-chip' },
    room: 2,
    extends: true,
    deadlineMinSeconds: 3,
  };
}

conform('ssh', subject);
workInGuest('ssh', subject);

const create = async (backend: Backend, seconds = 600, tag = freshTag()) =>
  backend.create({ tag, quote: await backend.quote(SPEC), deadline: now() + seconds });
async function make(backend: Backend, seconds = 600): Promise<string> {
  const created = await create(backend, seconds);
  assert.equal(created.kind, 'created', JSON.stringify(created));
  return (created as { ref: string }).ref;
}
async function sh(backend: Backend, ref: string, command: string): Promise<string> {
  const { stdout, stderr } = await backend.guest.exec(ref, {
    command,
    timeoutSeconds: 60,
    streamBytesMax: 1024 * 1024,
  });
  return stdout.toString() + stderr.toString();
}
const userOf = (ref: string) => ref.slice(ref.lastIndexOf('/') + 1);
const hasUser = (name: string) => readFileSync('/etc/passwd', 'utf8').includes(`${name}:`);
/** Processes of a user id, zombies left out. */
const processesOf = (uid: number) =>
  readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    try {
      const status = readFileSync(`/proc/${pid}/status`, 'utf8');
      return new RegExp(`^Uid:.*\\b${uid}\\b`, 'm').test(status) && !/^State:\s+Z/m.test(status);
    } catch {
      return false;
    }
  });
/** The processor time that the processes of a user id have used, in ticks. */
const cpuTicksOf = (uid: number) =>
  processesOf(uid).reduce((sum, pid) => {
    const [, stat = ''] = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ');
    const [, , , , , , , , , , , user, kernel] = stat.split(' ');
    return sum + Number(user) + Number(kernel);
  }, 0);

test('of two creates that race for the last host one gets it, and the other hears that there is no room', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const [a, b] = [open([host]), open([host])];
  const answers = await Promise.all([create(a), create(b)]);
  assert.deepEqual(answers.map((it) => it.kind).sort(), ['created', 'refused']);
  assert.equal((answers.find((it) => it.kind === 'refused') as { code: string }).code, 'capacity_unavailable');
  assert.equal((await a.listOwned(tagPrefix(INSTALLATION))).length, 1);
  assert.deepEqual(
    (await b.offers()).map((it) => it.available),
    [false],
  );
});

test('a create that is asked again answers the machine that it made', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const backend = open([host]);
  const tag = freshTag();
  const [first, second] = [await create(backend, 600, tag), await create(backend, 600, tag)];
  assert.deepEqual(first, second);
  assert.equal(first.kind, 'created');
});

test('a host with another key than the pinned one is never used', async (t) => {
  const host = await openSshd(t);
  const other = await openSshd(t);
  if (!host || !other) return;
  const backend = open([host], { host_key: other.host.host_key });
  const created = await create(backend);
  assert.deepEqual([created.kind, (created as { code: string }).code], ['refused', 'provider_unavailable']);
  await assert.rejects(backend.find(freshTag()), { message: /another host key/ });
  assert.match((await backend.health())[0]?.faults[0] ?? '', /another host key/);
  assert.equal(existsSync(join(host.pool, 'tenant')), false);
});

test('a host that is down: no create, no partial lists, and no trouble for leases of other hosts', async (t) => {
  const [one, two] = [await openSshd(t), await openSshd(t)];
  if (!one || !two) return;
  const backend = open([two, one]);
  const tag = freshTag();
  const created = await create(backend, 600, tag);
  const ref = (created as { ref: string }).ref;
  assert.ok(ref.startsWith(`127.0.0.1:${two.host.port}/`));
  await one.halt();
  assert.equal((await create(backend)).kind, 'refused');
  await assert.rejects(backend.find(freshTag()), /cannot be used/);
  await assert.rejects(backend.listOwned(tagPrefix(INSTALLATION)), /cannot be used/);
  assert.deepEqual(
    (await backend.find(tag)).map((it) => it.ref),
    [ref],
  );
  await backend.destroy(ref);
  assert.equal(await backend.inspect(ref), undefined);
  assert.deepEqual(await backend.find(tag), []);
  const down = open([one]);
  const refused = await create(down);
  assert.deepEqual([refused.kind, (refused as { code: string }).code], ['refused', 'provider_unavailable']);
});

test('a host that half-made a tenant and then is lost: no other is asked, and what it keeps is found', async (t) => {
  const [one, two] = [await openSshd(t, { prepare: 'mount --bind /bin/false /usr/sbin/useradd' }), await openSshd(t)];
  if (!one || !two) return;
  const backend = open([one, two]);
  const exec = Client.prototype.exec;
  // It is lost in the moment in which it is asked to end what it could not make.
  const { mock } = t.mock.method(Client.prototype, 'exec', function (this: Client, ...args: Parameters<typeof exec>) {
    if (/'?end'? '?purser-/.test(String(args[0]))) one.signal('SIGKILL', 'daemon');
    return exec.apply(this, args);
  });
  const tag = freshTag();
  assert.equal((await create(backend, 600, tag)).kind, 'unknown');
  assert.equal(existsSync(join(two.pool, 'tenant')), false);
  mock.restore();
  await one.revive();
  const [found, ...others] = await backend.find(tag);
  assert.deepEqual([found?.state, others], ['ended', []]);
  await backend.destroy(found?.ref as string);
  assert.deepEqual(await backend.find(tag), []);
  assert.equal((await create(backend)).kind, 'created', 'the first host can make none, and is clean');
});

test('a host whose disk fails once its tenant has a place does not say that it made nothing', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-sync-'));
  t.after(() => rmSync(directory, { recursive: true }));
  const sync = join(directory, 'sync');
  writeFileSync(sync, '#!/bin/sh\ncase $1 in *.new) exit 0; esac; exit 1\n', { mode: 0o755 }); // Files, but no directory.
  const host = await openSshd(t, { prepare: `mount --bind ${sync} "$(command -v sync)"` });
  if (!host) return;
  assert.equal((await create(open([host]), 600, freshTag())).kind, 'unknown');
});

test('a tenant has no privileges, and reads neither root’s files nor the pool’s nor an earlier tenant’s', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const backend = open([host]);
  const first = await make(backend);
  await backend.guest.upload(first, '/tmp/purser-leftover', Buffer.from('secret'));
  await sh(backend, first, 'echo secret > ~/secret; echo secret > /dev/shm/purser-leftover');
  await backend.destroy(first);
  const second = await make(backend);
  const said = await sh(
    backend,
    second,
    `id -u; id -G; umask; pwd; echo "$PATH" >/dev/null; env | grep -c SSH_; grep -E 'NoNewPrivs|Cap(Prm|Eff|Bnd|Inh)' /proc/self/status | tr -s '\\t\\n' ' '; echo
    cat ${host.pool}/next_uid /etc/shadow ${host.host.identity_file} /tmp/purser-leftover /dev/shm/purser-leftover /home/${userOf(first)}/secret 2>/dev/null; ls -A ~; ls ${host.pool} 2>/dev/null; ls /proc/self/fd | tr '\\n' ' '`,
  );
  const [uid, groups, mask, cwd, ssh, privileges, ...rest] = said.split('\n');
  assert.deepEqual(
    [uid, groups, mask, cwd, ssh],
    [`${host.firstUid + 1}`, `${host.firstUid + 1}`, '0022', `/home/${userOf(second)}`, '0'],
  );
  assert.match(privileges ?? '', /^CapInh: 0+ CapPrm: 0+ CapEff: 0+ CapBnd: 0+ NoNewPrivs: 1 $/);
  assert.deepEqual(rest, ['0 1 2 3 8 '], 'the streams, the listed directory, and the mark of the time limit');
});

test('what a tenant left running and lying about is gone after its end, and its id is not given again', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const backend = open([host]);
  const ref = await make(backend);
  const mark = `purser-mark-${randomBytes(6).toString('hex')}`;
  await sh(
    backend,
    ref,
    `nohup sleep 3001 >/dev/null 2>&1 & setsid sh -c 'trap "" HUP TERM; while :; do sleep 3002; done' >/dev/null 2>&1 &
    for at in /tmp /var/tmp /dev/shm ~; do mkdir -p $at/${mark}/deep; touch $at/${mark}/deep/file; chmod 000 $at/${mark}/deep; done; ipcmk -M 4096 >/dev/null`,
  );
  await until('it runs', async () => processesOf(host.firstUid).length >= 3);
  assert.ok(hasUser(userOf(ref)));
  await backend.destroy(ref);
  assert.deepEqual(processesOf(host.firstUid), []);
  assert.equal(hasUser(userOf(ref)), false);
  for (const at of ['/tmp', '/var/tmp', '/dev/shm']) assert.equal(existsSync(join(at, mark)), false, at);
  assert.equal(existsSync(`/home/${userOf(ref)}`), false);
  assert.ok(!readFileSync('/proc/sysvipc/shm', 'utf8').includes(` ${host.firstUid} `));
  assert.equal(readFileSync(join(host.pool, 'last'), 'utf8'), `${userOf(ref)} clean\n`);
  const again = await make(backend);
  assert.equal((await sh(backend, again, 'id -u')).trim(), `${host.firstUid + 1}`);
  await backend.destroy(again);
  await backend.destroy(again);
});

for (const name of ['STOP', 'KILL'])
  test(`a tenant that signals whatever comes to end it (${name}) is ended all the same`, async (t) => {
    const host = await openSshd(t);
    if (!host) return;
    const backend = open([host]);
    const ref = await make(backend);
    await sh(backend, ref, `nohup perl -e 'sleep 1; for (;;) { kill ${name} => -1 }' >/dev/null 2>&1 &`);
    await until('it signals', async () => cpuTicksOf(host.firstUid) > 50);
    await backend.destroy(ref);
    assert.deepEqual(processesOf(host.firstUid), []);
    assert.equal(hasUser(userOf(ref)), false);
    assert.equal(await backend.inspect(ref), undefined);
  });

/** Gives a host a disk of its own with few inodes, for its pool and its tenants. */
const SMALL_DISK = `mkdir disk && mount -t tmpfs -o size=2g,nr_inodes=200,mode=755 none disk
mkdir -m 700 disk/pool && mkdir disk/home && cp pool/next_uid disk/pool
mount --bind disk/home /home && mount --bind disk/pool pool`;

test('a tenant that has filled the disk of its host is ended all the same, at once and at its deadline', async (t) => {
  const host = await openSshd(t, { prepare: SMALL_DISK });
  if (!host) return;
  const fill = 'nohup sleep 3006 >/dev/null 2>&1 & i=0; while : >$i; do i=$((i + 1)); done';
  const backend = open([host]);
  const ref = await make(backend);
  assert.match(await sh(backend, ref, fill), /No space left/);
  await backend.close();
  const next = open([host]); // A server that was started anew has no connection yet.
  await next.destroy(ref);
  assert.equal(await next.inspect(ref), undefined);
  assert.deepEqual(processesOf(host.firstUid), []);
  const late = await make(next, 20);
  assert.match(await sh(next, late, fill), /No space left/);
  await until('the host has ended it', async () => (await next.inspect(late)) === undefined);
  assert.deepEqual(processesOf(host.firstUid + 1), []);
});

test('what has ended and is only reaped while the host looks is not taken for a new process', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const backend = open([host]);
  const ref = await make(backend);
  // Enough of them that they are reaped in the middle of a look.
  const zombies = spawn(
    'perl',
    [
      '-e',
      `for (1..500) { if (fork() == 0) { $( = $) = "${host.firstUid} ${host.firstUid}"; $< = $> = ${host.firstUid}; require POSIX; POSIX::_exit(0) } }
       print "made\n"; close STDOUT; <STDIN>; 1 while wait != -1;`,
    ],
    { stdio: ['pipe', 'pipe', 'inherit'] },
  );
  const reaped = once(zombies, 'exit');
  t.after(() => zombies.kill('SIGKILL'));
  await once(zombies.stdout, 'data');
  await until('all of them have ended', async () => processesOf(host.firstUid).length === 0);
  const destroyed = backend.destroy(ref);
  // What it looks for now should have been begun after its user was removed.
  await until('its user is removed', async () => !hasUser(userOf(ref)));
  zombies.stdin.end();
  await destroyed;
  await reaped;
  assert.equal(readFileSync(join(host.pool, 'last'), 'utf8'), `${userOf(ref)} clean\n`);
});

test('a host that cannot be cleaned is quarantined until the operator lifts that, and the lease still ends', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const backend = open([host]);
  const ref = await make(backend);
  const busy = `/home/${userOf(ref)}/busy`;
  await sh(backend, ref, 'mkdir busy');
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'none', busy]);
  try {
    await backend.destroy(ref);
    assert.equal(await backend.inspect(ref), undefined);
    assert.deepEqual(processesOf(host.firstUid), []);
    assert.equal(hasUser(userOf(ref)), false);
    const [health] = await backend.health();
    assert.equal(health?.state, 'quarantined');
    assert.match(health?.faults.join() ?? '', new RegExp(userOf(ref)));
    assert.deepEqual(
      (await backend.offers()).map((it) => it.available),
      [false],
    );
    const refused = await create(backend);
    assert.deepEqual([refused.kind, (refused as { code: string }).code], ['refused', 'capacity_unavailable']);
  } finally {
    execFileSync('umount', [busy]);
    rmSync(`/home/${userOf(ref)}`, { recursive: true, force: true });
  }
  assert.equal((await create(backend)).kind, 'refused');
  rmSync(join(host.pool, 'quarantine'));
  await backend.destroy(await make(backend));
});

test('the host ends its tenant at the deadline while nobody asks', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const backend = open([host]);
  const ref = await make(backend, 20);
  await sh(backend, ref, 'nohup sleep 3003 >/dev/null 2>&1 &');
  await backend.close();
  await host.halt();
  await until('the host has ended it', async () => !existsSync(join(host.pool, 'tenant')));
  assert.deepEqual(processesOf(host.firstUid), []);
  assert.equal(hasUser(userOf(ref)), false);
});

test('a tenant has the whole of its time on a host whose clock is ahead', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const clock = () => now() - 100;
  const backend = open([host], {}, clock);
  const deadline = clock() + 40;
  const created = await backend.create({ tag: freshTag(), quote: await backend.quote(SPEC), deadline });
  assert.equal(created.kind, 'created', JSON.stringify(created));
  const { ref } = created as { ref: string };
  const later = clock() + 20;
  assert.deepEqual(await backend.extend(ref, later), { kind: 'done' });
  assert.equal((await backend.inspect(ref))?.deadline, later);
  await until('the host has ended it', async () => (await backend.inspect(ref))?.state !== 'running');
  assert.ok(clock() >= later, `it was ended at ${clock()}, and its time was over at ${later}`);
});

test('after a reboot of the host its tenant has ended, cannot be used or extended, and is cleaned', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const backend = open([host]);
  const ref = await make(backend);
  writeFileSync(join(host.pool, 'tenant/boot'), 'another\n');
  assert.equal((await backend.inspect(ref))?.state, 'ended');
  assert.equal((await backend.extend(ref, now() + 900)).kind, 'refused');
  await assert.rejects(sh(backend, ref, 'true'), /has ended/);
  await backend.destroy(ref);
  assert.equal(await backend.inspect(ref), undefined);
});

test('a watch that died is set going again when the host is asked', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const backend = open([host]);
  const ref = await make(backend);
  // The watch of exactly this tenant: its command line names this test's own directory.
  const isWatch = (pid: string) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`${host.pool}\0watch\0${userOf(ref)}`);
    } catch {
      return false;
    }
  };
  const parentOf = (pid: string) => {
    try {
      return /^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
    } catch {
      return undefined;
    }
  };
  const watches = () => {
    const all = readdirSync('/proc').filter((it) => /^\d+$/.test(it) && isWatch(it));
    return all.filter((it) => !all.includes(parentOf(it) ?? '')); // A `$(…)` of its own looks the same for a moment.
  };
  const [first, ...others] = watches();
  assert.deepEqual([typeof first, others], ['string', []]);
  process.kill(Number(first), 'SIGKILL');
  await until('another watches', async () => {
    await backend.inspect(ref);
    return watches().some((it) => it !== first);
  });
  await backend.destroy(ref);
});

test('a session with a terminal: its size, its end, and what it started dies with it', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  const backend = open([host]);
  const ref = await make(backend);
  const session = await backend.guest.session(ref, {
    command: undefined,
    terminal: { term: 'xterm', columns: 91, rows: 31 },
  });
  let said = '';
  session.stdout.on('data', (chunk) => {
    said += chunk;
  });
  session.stdin.write('stty size < "$(tty)"; echo "term=$TERM"; id -u\n');
  await until(
    'the size is right',
    async () => said.includes('31 91') && said.includes('term=xterm') && said.includes(`${host.firstUid}\r\n`),
  );
  session.resize(100, 40);
  session.stdin.write('stty size; exit 6\n');
  assert.deepEqual(await session.ended, { code: 6 });
  await until('the new size is seen', async () => said.includes('40 100'));
  const killed = await backend.guest.session(ref, { command: 'setsid sleep 3004 & sleep 3005', terminal: undefined });
  killed.ended.catch(() => {});
  await until('it runs', async () => processesOf(host.firstUid).length >= 2);
  killed.kill();
  await until('all of it is dead', async () => processesOf(host.firstUid).length === 0);
  await backend.destroy(ref);
});

test('a host is not leased while its clock is wrong or its GPUs do not answer, and says which', async (t) => {
  const host = await openSshd(t);
  if (!host) return;
  for (const [backend, fault] of [
    [open([host], {}, () => now() + 3600), /clock differs from Purser's by -3\d\d\d s/],
    [open([host], { gpus: 1 }), /nvidia-smi shows 0 GPUs/],
  ] as const) {
    const refused = await create(backend);
    assert.deepEqual([refused.kind, (refused as { code: string }).code], ['refused', 'capacity_unavailable']);
    assert.match((await backend.health())[0]?.faults.join() ?? '', fault);
    assert.deepEqual(
      (await backend.offers()).map((it) => it.available),
      [false],
    );
  }
});
