import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { basename } from 'node:path';
import { Readable } from 'node:stream';
import test, { type TestContext } from 'node:test';
import { type Backend, type Machine, type Spec, tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { cpuShare, readCpuTime } from '../../src/compute/cpu-time.ts';
import { readGuestUsage } from '../../src/compute/guest-usage.ts';
import { collect } from '../../src/compute/machine/collect.ts';
import { connectPort, PortUnreachable } from '../../src/compute/port.ts';
import { freePort } from '../helper/free-port.ts';
import { until } from '../helper/waiting.ts';
import { startProcesses } from './engines/crowd.ts';

/** What the suite needs of a backend under test, opened against something real. */
export type Subject = {
  backend: Backend;
  /** A spec that can be made, and one of an offer or chip that does not exist. */
  spec: Spec;
  unknownSpec: Spec;
  /** Whether two machines of this spec can live at once. */
  room: 1 | 2;
  /** Whether the slot may extend; a backend that only serves provider_one still tightens its deadline. */
  extends: boolean;
  /** Least seconds a deadline may lie ahead (Slurm counts in minutes). */
  deadlineMinSeconds: number;
  /** Whether the line to a command breaks with its machine, so that nobody hears how the command ended. */
  losesLine?: true;
  /** Whether there is only one engine, which has no identity. */
  isNameless?: true;
};

/** Opens the subject of one test. Without what that needs, returns undefined and skips the test. */
export type Open = (t: TestContext) => Promise<Subject | undefined>;

/** Long beside the time that one reading takes of a processor. */
const SHARE_MILLISECONDS = 2000;
const CROWD_COUNT = 300;
/** A deadline is moved before it has passed, also on a busy machine. */
const MOVE_SECONDS = 10;
const now = () => Math.floor(Date.now() / 1000);

/** Folders in a machine, which may be this one: the name begins with this process's own, so that no other run removes them. */
export const FOLDERS = `/tmp/purser-test-${process.pid}-`;
export const newFolder = () => FOLDERS + randomBytes(6).toString('hex');

/** Destroys a machine until the backend confirms that it is gone. */
export async function gone(backend: Backend, ref: string): Promise<void> {
  const isGone = async () => {
    await backend.destroy(ref);
    return (await backend.inspect(ref)) === undefined;
  };
  await until(`${ref} is gone`, isGone);
}

const installation = `inst_${randomBytes(13).toString('hex')}`;
const freshTag = () => tagOf(installation, `res_${randomBytes(13).toString('hex')}`);

/** Makes a machine whose deadline is so many seconds ahead, and waits until commands run in it. */
export async function make({ backend, spec }: Subject, seconds = 600): Promise<{ tag: string; machine: Machine }> {
  const tag = freshTag();
  const created = await backend.create({ tag, quote: await backend.quote(spec), deadline: now() + seconds });
  assert.equal(created.kind, 'created', JSON.stringify(created));
  const ref = (created as { ref: string }).ref;
  const machine = await until(`${tag} runs`, async () => {
    const it = await backend.inspect(ref);
    assert.notEqual(it?.state, 'ended', 'a machine that was just made has not ended');
    return it?.state === 'running' && (await backend.guest.prove(ref)) === undefined && it;
  });
  return { tag, machine };
}

/** A machine that several tests share, and what they need of it. `t` is that of one test. */
export type Inside = {
  t: TestContext;
  subject: Subject;
  backend: Backend;
  ref: string;
  /** Runs a command; its time is a minute unless given in seconds. */
  sh(command: string, timeoutSeconds?: number): ReturnType<Backend['guest']['exec']>;
};

const run = (backend: Backend, ref: string, command: string, timeoutSeconds = 60) =>
  backend.guest.exec(ref, { command, timeoutSeconds, streamBytesMax: 1024 * 1024 });

/** Begins a session without a terminal. Its streams may break: `ended` reports that. */
export async function beginSession(backend: Backend, ref: string, command: string) {
  const session = await backend.guest.session(ref, { command, terminal: undefined });
  const stderr = session.stderr as Readable;
  for (const it of [session.stdin, session.stdout, stderr]) it.on('error', () => {});
  return { ...session, stderr };
}

/** Tests by name, each of which leaves the machine as it was. */
export type InsideTests = Record<string, (inside: Inside) => Promise<void>>;

/** Runs tests one after the other in one machine: to make a machine is most of what a test of it costs. */
export function inOneMachine(name: string, open: Open, tests: InsideTests): void {
  test(`${name}: ${Object.keys(tests).length} tests in one machine`, async (t) => {
    const subject = await open(t);
    if (!subject) return;
    const { backend } = subject;
    const { ref } = (await make(subject, 1800)).machine;
    const sh = (command: string, seconds?: number) => run(backend, ref, command, seconds);
    for (const [what, work] of Object.entries(tests))
      await t.test(`${name}: ${what}`, (t) => work({ t, subject, backend, ref, sh }));
    await gone(backend, ref);
  });
}

const INSIDE: InsideTests = {
  async 'a command past its time is killed with everything it started, and says so'({ sh }) {
    const marker = `4${randomBytes(3).readUIntBE(0, 3)}`;
    const said = await sh(`setsid sleep ${marker} & nohup sleep ${marker} >/dev/null 2>&1 & sleep ${marker}`, 1);
    assert.equal(said.timedOut, true);
    await until('the tree is dead', async () => {
      const left = await sh(
        `for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep '^sleep ${marker}'; done; true`,
      );
      return left.stdout.length === 0;
    });
  },

  async 'a command that left its environment behind ends at its time as well'({ sh }) {
    const marker = `5${randomBytes(3).readUIntBE(0, 3)}`;
    const command = `env -i setsid sleep ${marker} & (env -i sh -c 'setsid sleep ${marker} &'); sleep ${marker}`;
    assert.equal((await sh(command, 1)).timedOut, true);
    const left = `for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep '^sleep ${marker}'; done; true`;
    await until('all of it is dead', async () => (await sh(left)).stdout.length === 0);
  },

  // That it takes no more work among many is counted in shell.test.ts.
  async 'a command is ended at its limit among many processes, too'({ sh, t }) {
    await startProcesses(t, CROWD_COUNT);
    const started = performance.now();
    assert.equal((await sh('sleep 600', 1)).timedOut, true);
    assert.ok(performance.now() - started >= 1000, 'not before its limit');
  },

  async 'what a signal ended is 128 and its number'({ backend, ref, sh }) {
    for (const [signal, code] of [
      ['TERM', 143],
      ['KILL', 137],
      ['HUP', 129],
    ] as const) {
      const said = await sh(`kill -${signal} $$`);
      assert.deepEqual([said.exitCode, said.timedOut], [code, false], signal);
      const session = await backend.guest.session(ref, { command: `kill -${signal} $$`, terminal: undefined });
      for (const stream of [session.stdout, session.stderr]) stream?.resume(); // Unread output keeps a session open.
      const end = await session.ended;
      assert.ok('signal' in end ? end.signal === signal : end.code === code, JSON.stringify(end));
    }
  },

  async 'what a machine uses of a processor is read inside it'({ backend, ref, sh }) {
    /** What is used of a processor until it is more, or less, than a bound. A busy test machine is a slow one. */
    const share = async (isEnough: (share: number) => boolean) => {
      let before = await readCpuTime(backend, ref);
      assert.notEqual(before.source, 'none', 'this machine can say what it uses');
      return until('it is so', async () => {
        await new Promise((resolve) => setTimeout(resolve, SHARE_MILLISECONDS));
        const after = await readCpuTime(backend, ref);
        const found = cpuShare(before, after);
        before = after;
        return found !== undefined && isEnough(found);
      });
    };
    const burnt = newFolder();
    const burning = sh(`while [ ! -e ${burnt} ]; do :; done; rm ${burnt}`, 150);
    await share((it) => it > 0.2);
    await sh(`: > ${burnt}`);
    assert.equal((await burning).exitCode, 0);
    await share((it) => it < 0.1);
  },

  async 'what a machine uses of its GPUs is read inside it, with its processor time'({ backend, ref, sh }) {
    const folder = newFolder();
    // Of GPUs it has at most a tool that says so.
    const query = '--query-gpu=utilization.gpu,memory.used --format=csv,noheader,nounits';
    const tool = `#!/bin/sh\n[ "$*" = "${query}" ] || exit 2\necho "87, 1024"\necho "[N/A], 3"\n`;
    await backend.guest.upload(ref, `${folder}/nvidia-smi`, Buffer.from(tool));
    assert.equal((await sh(`chmod 755 ${folder}/nvidia-smi`)).exitCode, 0);
    const exec: Backend['guest']['exec'] = (_, order) =>
      backend.guest.exec(ref, { ...order, command: `PATH=${folder}:$PATH\n${order.command}` });
    const machine = { ...backend, guest: { ...backend.guest, exec } };
    const { cpuSeconds, gpus } = await readGuestUsage(machine, ref, { cpu: true, gpus: 2 });
    assert.ok(cpuSeconds !== undefined, 'it says');
    assert.deepEqual(gpus, [{ utilizationPercent: 87, memoryBytes: 1024 ** 3 }, { memoryBytes: 3 * 1024 ** 2 }]);
  },

  async 'each stream is cut at its limit, and says so'({ backend, ref }) {
    const order = {
      command: 'head -c 3000 /dev/zero; head -c 10 /dev/zero >&2',
      timeoutSeconds: 60,
      streamBytesMax: 1000,
    };
    const said = await backend.guest.exec(ref, order);
    assert.deepEqual(
      [said.stdout.length, said.stdoutTruncated, said.stderr.length, said.stderrTruncated, said.exitCode],
      [1000, true, 10, false, 0],
    );
  },

  async 'paths that leave, devices and directories are refused'({ backend, ref }) {
    for (const path of [
      '../x',
      'a/../../x',
      './x',
      '/tmp/../etc/x',
      '/dev/null',
      '/proc/1/comm',
      '/tmp/',
      '/tmp/a\nb',
      '/tmp',
    ])
      await assert.rejects(backend.guest.upload(ref, path, Buffer.from('x')), { code: 'invalid_request' }, path);
  },

  async 'an upload lies where a command looks for its path, and an executable stays one'({ backend, ref, sh }) {
    const read = async (path: string) => (await sh(`cat ${path}`)).stdout.toString();
    const unique = basename(newFolder());
    const mayWrite = async (folder: string) =>
      (await sh(`mkdir ${folder}/${unique}-try && rmdir ${folder}/${unique}-try`)).exitCode === 0;
    for (const [folder, path] of [
      ['.', `${unique}/below`],
      ['/tmp', `/tmp/${unique}`],
      ['/', `/${unique}-root`],
    ] as const) {
      const isWritable = await mayWrite(folder);
      const upload = backend.guest.upload(ref, path, Buffer.from(`at ${path}`));
      if (isWritable) {
        await upload;
        assert.equal(await read(path), `at ${path}`);
      } else await assert.rejects(upload, { code: 'invalid_request', message: /Permission denied/ });
    }
    await sh(`chmod 750 /tmp/${unique}`);
    await backend.guest.upload(ref, `/tmp/${unique}`, Buffer.from('#!/bin/sh\necho runs\n'));
    const ran = await sh(`/tmp/${unique}; stat -c %a /tmp/${unique}; ls -d /tmp/${unique}*`);
    assert.equal(ran.stdout.toString(), `runs\n750\n/tmp/${unique}\n`, ran.stderr.toString());
    await sh(`rm -rf ${unique} /tmp/${unique} /${unique}-root`);
  },

  async 'a session passes input, output and the exit code on'({ backend, ref }) {
    const session = await backend.guest.session(ref, {
      command: 'read line; echo "got $line"; exit 5',
      terminal: undefined,
    });
    session.stdin.write('hello\n');
    const chunks: Buffer[] = [];
    session.stdout.on('data', (chunk: Buffer) => chunks.push(chunk));
    assert.deepEqual(await session.ended, { code: 5 });
    await until('its output has arrived', async () => Buffer.concat(chunks).toString() === 'got hello\n');
  },

  async 'a session whose command leaves a long input unread says how it ended'({ backend, ref }) {
    const session = await beginSession(backend, ref, 'head -c 1 >/dev/null; echo enough; exit 7');
    const [stdout, stderr] = [collect(session.stdout, 100), collect(session.stderr, 100)];
    Readable.from(Array.from({ length: 100 }, () => Buffer.alloc(64 * 1024))).pipe(session.stdin);
    assert.deepEqual(await session.ended, { code: 7 });
    assert.deepEqual([`${(await stdout).bytes}`, `${(await stderr).bytes}`], ['enough\n', '']);
  },

  async 'a session that is killed does not say that its command succeeded'({ backend, ref }) {
    const session = await beginSession(backend, ref, 'echo begun; sleep 600');
    session.stderr.resume();
    await once(session.stdout, 'data');
    session.kill();
    const end = await session.ended.catch(() => undefined);
    assert.notDeepEqual(end, { code: 0 });
  },

  async 'a port on loopback inside is reached, there and back, and a closed one says so'({ backend, ref, sh, t }) {
    if (backend.guest.relay !== undefined)
      assert.equal((await sh(`${backend.guest.relay} relay`)).exitCode, 0, 'it can relay');
    const port = await freePort(); // A machine may be this one.
    const serve = `busybox nc -ll -p ${port} -e cat >/dev/null 2>&1 || perl -MSocket -e '
      socket(S, PF_INET, SOCK_STREAM, 0); setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1);
      bind(S, sockaddr_in(${port}, INADDR_LOOPBACK)) or die; listen(S, 5);
      while (accept(C, S)) { syswrite(C, $b, $n) while $n = sysread(C, $b, 65536); close C }' >/dev/null 2>&1`;
    await assert.rejects(connectPort(backend, ref, port), PortUnreachable);
    await sh(`(${serve}) >/dev/null 2>&1 </dev/null &`);
    const stream = await until('somebody listens', () =>
      connectPort(backend, ref, port).catch((error) => {
        if (error instanceof PortUnreachable) return undefined;
        throw error;
      }),
    );
    t.after(() => stream.destroy());
    const bytes = randomBytes(2 * 1024 * 1024);
    const came = stream.toArray();
    stream.end(bytes); // The end of the input is passed on, so the server ends too.
    assert(bytes.equals(Buffer.concat(await came)));
  },

  async 'a deadline that is moved is moved'({ backend, ref, subject }) {
    if (!subject.extends) return;
    const deadline = now() + 2400;
    assert.deepEqual(await backend.extend(ref, deadline), { kind: 'done' });
    const moved = (await backend.inspect(ref))?.deadline ?? 0;
    assert.ok(moved >= deadline && moved < deadline + 120, `${moved} is about ${deadline}`);
  },
};

/** The same suite for every backend: a new one has to pass it. */
export function conform(name: string, open: Open): void {
  test(`${name}: the whole life of a machine`, async (t) => {
    const subject = await open(t);
    if (!subject) return;
    const { backend } = subject;
    // As long as another backend of its slot may take to make it.
    const { tag, machine } = await make(subject, 1800);
    assert.deepEqual(
      (await backend.find(tag)).map((it) => it.ref),
      [machine.ref],
    );
    const owned = await backend.listOwned(tagPrefix(installation));
    assert.deepEqual(
      owned.filter((it) => it.tag === tag).map((it) => it.ref),
      [machine.ref],
    );
    assert.ok(Math.abs((owned.find((it) => it.tag === tag)?.createdAt ?? 0) - now()) < 120);
    assert.deepEqual(
      await backend.listOwned(tagPrefix('inst_somebodyelse')),
      [],
      'other installations own nothing here',
    );

    const said = await run(backend, machine.ref, 'echo out; echo err >&2; exit 7');
    assert.deepEqual(
      [said.exitCode, said.stdout.toString(), said.stderr.toString(), said.timedOut],
      [7, 'out\n', 'err\n', false],
    );
    const content = randomBytes(300_000);
    const folder = `${newFolder()}/deep`;
    await backend.guest.upload(machine.ref, `${folder}/file.bin`, content);
    await backend.guest.upload(machine.ref, `${folder}/file.bin`, content.subarray(0, 200_000));
    const size = await run(backend, machine.ref, `wc -c < ${folder}/file.bin; ls ${folder}; rm -r ${folder}`);
    assert.equal(size.stdout.toString().trim().replace(/\s+/g, ' '), '200000 file.bin', size.stderr.toString());

    await gone(backend, machine.ref);
    await backend.destroy(machine.ref); // What is gone is done.
    assert.deepEqual(await backend.find(tag), []);
  });

  test(`${name}: its engine has an identity, which stays the same`, async (t) => {
    const subject = await open(t);
    if (!subject) return;
    const { backend } = subject;
    const identity = await backend.identity?.();
    if (subject.isNameless) return assert.equal(identity, undefined);
    assert.match(identity ?? '', /\w{4}/);
    const { machine } = await make(subject);
    assert.equal(await backend.identity?.(), identity);
    await gone(backend, machine.ref);
    assert.equal(await backend.identity?.(), identity);
  });

  inOneMachine(name, open, INSIDE);

  test(`${name}: the end of a machine is the end of a command, as by a signal and not by its limit`, async (t) => {
    const subject = await open(t);
    if (!subject) return;
    const { backend } = subject;
    const { machine } = await make(subject);
    const marker = `6${randomBytes(3).readUIntBE(0, 3)}`;
    // No shell of its own is left, which would say what ended it.
    const command = run(backend, machine.ref, `echo mine >&2; exec sleep ${marker}`);
    command.catch(() => {}); // It is looked at below.
    const list = `for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep '^sleep ${marker}'; done; true`;
    await until('it runs', async () => (await run(backend, machine.ref, list)).stdout.length > 0);
    await gone(backend, machine.ref);
    if (subject.losesLine) return assert.rejects(command);
    const { exitCode, timedOut, stderr } = await command;
    assert.ok(exitCode > 128 && !timedOut, `exit code ${exitCode}`);
    assert.equal(stderr.toString().trimEnd(), 'mine', 'with no word of the backend');
  });

  test(`${name}: its own deadline ends a machine without anybody asking`, async (t) => {
    const subject = await open(t);
    if (!subject) return;
    const { backend, deadlineMinSeconds } = subject;
    const { machine } = await make(subject);
    const deadline = now() + Math.max(deadlineMinSeconds, MOVE_SECONDS);
    assert.deepEqual(await backend.extend(machine.ref, deadline), { kind: 'done' });
    await until('the deadline has ended it', async () => {
      const it = await backend.inspect(machine.ref);
      if (it && it.state !== 'ended') return false;
      assert.ok(Date.now() / 1000 >= deadline - 1, 'it did not end before its deadline');
      return true;
    });
    await gone(backend, machine.ref);
  });

  test(`${name}: what is not there is not there, and what is not on offer is refused`, async (t) => {
    const subject = await open(t);
    if (!subject) return;
    const { backend } = subject;
    assert.deepEqual(await backend.find(freshTag()), []);
    await assert.rejects(async () => backend.quote(subject.unknownSpec), { code: 'offer_not_found' });
    for (const offer of await backend.offers())
      assert.deepEqual((await backend.quote(offer.spec)).priceHourly, offer.priceHourly);
  });
}
