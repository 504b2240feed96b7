import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { tagOf } from '../../src/compute/backend.ts';
import { keepConnections } from '../../src/compute/engines/ssh/connections.ts';
import { HostUnreachable } from '../../src/compute/engines/ssh/host.ts';
import { openSshBackend, type SshBackend } from '../../src/compute/engines/ssh/ssh.ts';
import { NeverSent } from '../../src/compute/kit/channel.ts';
import { connectSsh } from '../../src/compute/kit/connect.ts';
import { runOnChannel } from '../../src/compute/kit/ssh-program.ts';
import { until } from '../helper/waiting.ts';
import { openSshd, type Sshd } from './engines/sshd.ts';

/** The kept connections to a pool host, on a real sshd. */

const SPEC = { chip: 'test-chip', max_seconds: 600 };
const INSTALLATION = `inst_${randomBytes(13).toString('hex')}`;
const ORDER = { input: Buffer.alloc(0), streamBytesMax: 1000, milliseconds: 60_000 };
const now = () => Math.floor(Date.now() / 1000);

type Leased = { sshd: Sshd; backend: SshBackend; ref: string; sh(command: string): Promise<string> };

function openBackend(t: TestContext, { host }: Sshd): SshBackend {
  const leases = mkdtempSync(join(tmpdir(), 'purser-leases-'));
  const settings = { backend: 'ssh' as const, hosts: [host], limits: { max_seconds: 86_400 }, provision_seconds: 60 };
  const backend = openSshBackend(settings, { leases, now });
  t.after(async () => {
    await backend.close();
    rmSync(leases, { recursive: true, force: true });
  });
  return backend;
}

/** A leased host whose sshd has these settings. The lease was made over connections that are closed again. */
async function lease(t: TestContext, settings: string[] = [], prepare = ''): Promise<Leased | undefined> {
  const sshd = await openSshd(t, { settings, prepare });
  if (!sshd) return undefined;
  const maker = openBackend(t, sshd);
  const tag = tagOf(INSTALLATION, `res_${randomBytes(13).toString('hex')}`);
  const made = await maker.create({ tag, quote: await maker.quote(SPEC), deadline: now() + 600 });
  assert.equal(made.kind, 'created', JSON.stringify(made));
  await maker.close();
  await until('nobody is connected', async () => sshd.connections() === 0);
  const backend = openBackend(t, sshd);
  const { ref } = made as { ref: string };
  const sh = async (command: string) => {
    const said = await backend.guest.exec(ref, { command, timeoutSeconds: 60, streamBytesMax: 8 * 1024 * 1024 });
    return `${said.stdout}${said.stderr}${said.exitCode}`;
  };
  return { sshd, backend, ref, sh };
}

/** Runs so many commands at once; each has to answer its own number. */
async function crowd({ backend, ref }: Leased, count: number): Promise<void> {
  const run = async (_: unknown, i: number) => {
    const order = { command: `echo ${i}; sleep 0.2`, timeoutSeconds: 60, streamBytesMax: 1000 };
    const { stdout, exitCode } = await backend.guest.exec(ref, order);
    return `${stdout}${exitCode}`;
  };
  const all = await Promise.all(Array.from({ length: count }, run));
  assert.deepEqual(
    all,
    all.map((_, i) => `${i}\n0`),
  );
}
/** Takes from a host what the second sshd needs. */
const NO_SECOND_SSHD = 'mount --bind /bin/false /usr/bin/ssh-keygen';

const countOf = (text: string, words: RegExp) => text.match(words)?.length ?? 0;
const REFUSED = /no more sessions/g;
const DROPPED = /drop connection|past MaxStartups/g;

test('40 commands at once on a host with the defaults of sshd: none fails, over few connections', async (t) => {
  const it = await lease(t);
  if (!it) return;
  await crowd(it, 40);
  const count = it.sshd.connections();
  // A channel that is asked for in the same breath as another is closed may be refused, and is asked for again, on a new connection.
  const refused = countOf(it.sshd.log(), REFUSED);
  assert.ok(count >= 1 && count <= 5 + refused, `${count} connections, ${refused} refusals`);
  assert.equal(countOf(it.sshd.log(), DROPPED), 0);
});

test('a host that takes two sessions a connection gets more connections, and is not asked in vain again', async (t) => {
  const it = await lease(t, ['MaxSessions 2', 'LogLevel VERBOSE'], NO_SECOND_SSHD);
  if (!it) return;
  await crowd(it, 12);
  const refused = countOf(it.sshd.log(), REFUSED);
  assert.ok(refused > 0, 'it was learned from refusals');
  await crowd(it, 12);
  const again = countOf(it.sshd.log(), REFUSED) - refused;
  assert.ok(again < refused / 2, `${again} refusals after ${refused}`); // Some meet the end of another.
});

test('a connection that sshd drops before its handshake is opened again', async (t) => {
  const it = await lease(t, ['MaxSessions 1', 'MaxStartups 1:100:1', 'LogLevel VERBOSE'], NO_SECOND_SSHD);
  if (!it) return;
  await crowd(it, 8);
  assert.ok(countOf(it.sshd.log(), DROPPED) > 0, it.sshd.log());
});

test('a host that takes no session at all is unreachable, and soon', async (t) => {
  const sshd = await openSshd(t, { settings: ['MaxSessions 0'] });
  if (!sshd) return;
  const backend = openBackend(t, sshd);
  const tag = tagOf(INSTALLATION, `res_${randomBytes(13).toString('hex')}`);
  const made = await backend.create({ tag, quote: await backend.quote(SPEC), deadline: now() + 600 });
  assert.deepEqual([made.kind, (made as { code: string }).code], ['refused', 'provider_unavailable']);
  await assert.rejects(backend.find(tag), {
    constructor: HostUnreachable,
    message: /cannot be used.*opens no channel/,
  });
});

test('keys are exchanged again in the middle of output', async (t) => {
  const it = await lease(t, ['RekeyLimit 256K']);
  if (!it) return;
  const all = await Promise.all([1, 2, 3, 4].map(() => it.sh('head -c 3000000 /dev/zero')));
  assert.deepEqual(
    all.map((said) => said.length),
    Array(4).fill(3_000_001),
  );
});

test('a command of many quotes is too long for a line, and runs all the same', async (t) => {
  const it = await lease(t);
  if (!it) return;
  const command = `printf %s ${`"it's"`.repeat(8_000)} | wc -c`;
  assert.equal(await it.sh(command), '32000\n0');
});

/** A host whose root has a ~/.bashrc that notes each start of a shell, in a file of its own. */
async function withBashrc(t: TestContext, prepare = '') {
  const directory = mkdtempSync(join(tmpdir(), 'purser-bashrc-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const notes = join(directory, 'starts');
  const own = `mount -t tmpfs none /root; echo 'echo started >> ${notes}' > /root/.bashrc`;
  const it = await lease(t, ['SetEnv SHLVL=0'], `${own}\n${prepare}`);
  const starts = () => countOf(readFileSync(notes, 'utf8'), /started/g);
  return it && { ...it, starts };
}

test('the login shell of root starts once for a connection, and not for each command', async (t) => {
  const it = await withBashrc(t);
  if (!it) return;
  const before = it.starts();
  for (let i = 0; i < 10; i++) assert.equal(await it.sh(`echo ${i}`), `${i}\n0`);
  assert.equal(it.sshd.connections(), 1);
  assert.equal(it.starts() - before, 1);
  const session = await it.backend.guest.session(it.ref, {
    command: 'tty',
    terminal: { term: 'xterm', columns: 80, rows: 24 },
  });
  assert.deepEqual(await session.ended, { code: 0 });
  assert.equal(it.starts() - before, 1);
});

test('a host that can start no second sshd is used all the same, and doctor says what a slow shell costs', async (t) => {
  const it = await withBashrc(t, `${NO_SECOND_SSHD}; echo 'sleep 1' >> /root/.bashrc`);
  if (!it) return;
  const before = it.starts();
  for (let i = 0; i < 3; i++) assert.equal(await it.sh(`echo ${i}`), `${i}\n0`);
  assert.equal(it.starts() - before, 5, 'the second sshd, the script, and three commands');
  const [found] = await it.backend.doctor.check();
  assert.match(
    found?.detail ?? '',
    /^Warning: root's login shell takes \d\.\d s to start there, and starts for each command/,
  );
});

test('a connection that dies takes its commands with it, as unknown, and the next command runs', async (t) => {
  const it = await lease(t);
  if (!it) return;
  const file = `/tmp/purser-test-${randomBytes(6).toString('hex')}`;
  const running = it.sh(`echo begun > ${file}; sleep 30`);
  running.catch(() => {}); // It is looked at below.
  await until('it runs', async () => (await it.sh(`cat ${file}`)).startsWith('begun'));
  it.sshd.signal('SIGKILL');
  await assert.rejects(
    running,
    (error: Error) => /connection .* was lost/.test(error.message) && !(error instanceof NeverSent),
  );
  assert.equal(await it.sh(`rm ${file}`), '0');
  it.sshd.signal('SIGKILL');
  assert.equal(await it.sh('true'), '0', 'a dead connection that nobody used meanwhile');
});

test('a host that hangs: what runs is lost, what is asked was never sent, and both are told in time', async (t) => {
  const it = await lease(t);
  if (!it) return;
  assert.equal(await it.sh('true'), '0');
  const file = `/tmp/purser-test-${randomBytes(6).toString('hex')}`;
  const running = it.sh(`echo begun > ${file}; sleep 100`);
  running.catch(() => {}); // It is looked at below.
  await until('it runs', async () => (await it.sh(`cat ${file}`)).startsWith('begun'));
  it.sshd.signal('SIGSTOP', 'daemon');
  const [asked, moved, lost] = await Promise.all([
    it.sh('echo late').catch((error: Error) => error),
    it.backend.extend(it.ref, now() + 900),
    running.catch((error: Error) => error),
  ]);
  assert.ok(asked instanceof HostUnreachable, String(asked));
  assert.equal(moved.kind, 'refused');
  assert.ok(lost instanceof Error && !(lost instanceof NeverSent), String(lost));
  it.sshd.signal('SIGCONT', 'daemon');
  await until('it answers again', async () => (await it.sh('true').catch(() => '')) === '0');
});

test('a tenant who holds many sessions does not keep the lease from ending', async (t) => {
  const it = await lease(t);
  if (!it) return;
  const sessions = await Promise.all(
    Array.from({ length: 24 }, () => it.backend.guest.session(it.ref, { command: 'yes', terminal: undefined })),
  );
  for (const { ended } of sessions) ended.catch(() => {}); // Nobody reads what they say.
  await it.backend.destroy(it.ref);
  assert.equal(await it.backend.inspect(it.ref), undefined);
});

test('connections close when idle, also after a session that nobody read, and with the backend', async (t) => {
  const sshd = await openSshd(t);
  if (!sshd) return;
  const { address, port, identity_file: key } = sshd.host;
  const privateKey = readFileSync(key, 'utf8');
  const connect = () => connectSsh({ host: address, port, username: 'root', privateKey }, () => true);
  const kept = keepConnections(connect, 300);
  t.after(() => kept.close());
  const begun = await kept.begin('yes');
  assert.equal((await runOnChannel(kept, 'echo hi', ORDER)).stdout.toString(), 'hi\n');
  assert.equal(sshd.connections(), 1, 'a second channel, not a second connection');
  begun.close();
  await assert.rejects(begun.ended);
  await until('it is closed', async () => sshd.connections() === 0);

  const last = runOnChannel(kept, 'sleep 30', ORDER);
  last.catch(() => {}); // It is looked at below.
  await until('it is open again', async () => sshd.connections() === 1);
  kept.close();
  await assert.rejects(last);
  await until('all are closed', async () => sshd.connections() === 0);
  await assert.rejects(kept.begin('true'), NeverSent);
});

test('a path that cannot be is refused before anything is connected', async (t) => {
  const it = await lease(t);
  if (!it) return;
  await assert.rejects(it.backend.guest.upload(it.ref, '../x', Buffer.from('x')), { code: 'invalid_request' });
  assert.equal(it.sshd.connections(), 0);
});
