import { setTimeout as sleep } from 'node:timers/promises';
import { waitFor } from '../test/helper/waiting.ts';
import type { Chance } from './chance.ts';
import { runCommand } from './commands.ts';
import { lose } from './docker.ts';
import type { FaultName, Step } from './plan.ts';
import type { Rig } from './rig.ts';
import { tamper } from './tamper.ts';

/** Causes one fault, and undoes what it can. Returns `left out` if it cannot be caused here. */
type Fault = (rig: Rig, step: Step) => Promise<unknown>;

const seconds = (count: number) => sleep(count * 1000);
const PAST_EXPIRIES = 3;

/** Makes system calls of the server fail, come late or kill it, through strace. `fatal` says that this may end the server. */
const injected =
  (calls: string, what: string | ((chance: Chance) => string), fatal: boolean): Fault =>
  async (rig, { lasts, chance }) => {
    const allowance = fatal ? rig.site.allow() : undefined;
    const server = await rig.site.server();
    const watching = await tamper(server.pid, calls, typeof what === 'string' ? what : what(chance));
    await Promise.race([server.ended, seconds(lasts)]);
    await watching?.end();
    await seconds(0.2); // By then an end that it caused has been noticed.
    allowance?.end();
    return watching ? undefined : 'left out';
  };

const clock =
  (leap: number): Fault =>
  async ({ clock, site }, { lasts }) => {
    if (!clock) return 'left out';
    await site.server();
    clock.leap(leap);
    await seconds(lasts);
    clock.leap(0);
  };

/**
 * Notes a finding if the server doubts its clock and should not, or the other way round; nothing if it does not answer.
 * `status` is asked, as `readyz` would name a full disk instead.
 */
async function expectDoubt(site: Rig['site'], isExpected: boolean, when: string): Promise<void> {
  await site.server();
  const { code, stdout } = await site.purser.cli('--json', 'status');
  if (code !== 0) return;
  const isDoubted = /--accept-clock/.test(JSON.parse(stdout).clock.holds_blocked ?? '');
  if (isDoubted === isExpected) return;
  const what = `the clock ${isDoubted ? 'is' : 'is not'} in doubt after ${when}`;
  site.findings.push({ failure: 'unexpected answers', what });
}

/** Restarts the server with a wrong clock, which it must not believe, and then with the right one. */
const startWithClock =
  (leap: number): Fault =>
  async ({ clock, site }, { lasts }) => {
    if (!clock) return 'left out';
    await site.server();
    clock.leap(leap);
    await site.end('SIGTERM');
    await expectDoubt(site, true, `a start that was ${leap} s off`);
    await seconds(lasts);
    clock.leap(0);
    await site.end('SIGKILL', '--accept-clock');
    await expectDoubt(site, false, 'a start with the right one');
  };

/**
 * Restarts the server with a clock that is ahead, which the operator accepts, and then with the right one. That one is in
 * doubt until the operator accepts it as well; but of a time in which nothing could be written a server knows nothing.
 */
const acceptClock =
  (ahead: number): Fault =>
  async ({ clock, disk, site, journal }, { lasts }) => {
    if (!clock) return 'left out';
    await site.server();
    const future = { endedAt: Number.POSITIVE_INFINITY, seconds: ahead };
    journal.futures.push(future);
    const startedAt = Date.now();
    clock.leap(ahead);
    await site.end('SIGKILL', '--accept-clock');
    await expectDoubt(site, false, 'a wrong one was accepted');
    await seconds(lasts);
    clock.leap(0);
    await site.end('SIGTERM');
    const couldWrite = !disk || disk.lastFilledAt() < startedAt;
    if (couldWrite) await expectDoubt(site, true, 'a start with the right one, where a wrong one was accepted');
    await site.end('SIGKILL', '--accept-clock');
    await expectDoubt(site, false, 'the right one was accepted');
    future.endedAt = Date.now();
  };

const full =
  (freeBytes: number): Fault =>
  async ({ disk, site }, { lasts }) => {
    if (!disk) return 'left out';
    const allowance = site.allow(); // The server cannot start without space.
    disk.fill(freeBytes);
    await seconds(lasts / 2);
    disk.fill(freeBytes); // Takes the reserve too, which the server has released for settlements.
    await seconds(lasts / 2);
    disk.free();
    await untilReady(site); // Or a server that could not write has ended meanwhile, and the next one is ready.
    allowance.end();
  };

/** Resolves when the server is ready: one whose commit has failed never is again. */
async function untilReady(site: Rig['site']): Promise<void> {
  const status = async () => (await (await site.server()).ask('GET', '/readyz').catch(() => ({ status: 0 }))).status;
  while ((await status()) !== 200) await seconds(0.2);
}

const losing =
  (moment: Parameters<typeof lose>[1]): Fault =>
  async ({ engines: { docker } }, { lasts, chance }) => {
    if (!docker) return 'left out';
    const until = performance.now() + lasts * 1000;
    while (performance.now() < until) {
      lose(docker.proxy, moment, chance.whole(1, 3));
      await seconds(0.4);
    }
    docker.proxy.watch();
  };

const ending =
  (signal: NodeJS.Signals): Fault =>
  async ({ engines: { docker } }, { lasts }) => {
    if (!docker) return 'left out';
    docker.daemon.signal(signal);
    await seconds(lasts);
    await docker.daemon.revive();
  };

/** A fault of an engine, which is left out without it. */
const on =
  <E extends 'slurm' | 'pool'>(
    name: E,
    cause: (engine: NonNullable<Rig['engines'][E]>, step: Step) => Promise<void>,
  ): Fault =>
  async ({ engines }, step) => {
    const engine = engines[name];
    return engine ? cause(engine, step) : 'left out';
  };

export const FAULTS: Record<FaultName, Fault> = {
  async 'kill -9'({ site }) {
    await site.server();
    await site.end('SIGKILL');
  },
  /** Kills the server while it serves, and again while it starts. */
  async 'kill -9 twice'({ site }, { chance }) {
    await site.server();
    await site.end('SIGKILL');
    await seconds(chance.between(0, 0.4));
    await site.end('SIGKILL');
  },
  async SIGTERM({ site }) {
    await site.server();
    const { code, signal } = await waitFor('SIGTERM ends the server', site.end('SIGTERM'));
    if (code !== 0)
      site.findings.push({ failure: 'unexpected ends', what: `SIGTERM ended the server with ${code ?? signal}` });
  },
  async SIGSTOP({ site }, { lasts }) {
    const server = await site.server();
    server.kill('SIGSTOP');
    await seconds(lasts * PAST_EXPIRIES);
    server.kill('SIGCONT');
  },
  'fsync fails': injected('fsync,fdatasync', 'error=EIO', true),
  'write fails': injected('pwrite64', 'error=EIO', true),
  'write finds no room': injected(
    'pwrite64',
    (chance) => `error=ENOSPC:when=${chance.whole(1, 9)}+${chance.whole(3, 9)}`,
    false,
  ),
  'kill -9 at a write': injected(
    'pwrite64,fsync,fdatasync,rename,ftruncate',
    (chance) => `signal=SIGKILL:when=${chance.whole(1, 60)}`,
    true,
  ),
  'fsync is slow': injected('fsync,fdatasync', 'delay_enter=150000', false),
  /** Starts another server on the same directory. It has to give up at once, and must not disturb the first. */
  async 'second server'({ site }) {
    const { pid } = await site.server();
    const second = site.purser.launch('serve');
    const served = await Promise.race([second.serving.then(() => true), second.ended.then(() => false)]).catch(
      () => false,
    );
    if (served) {
      site.findings.push({ failure: 'unexpected ends', what: `a second server began to serve beside process ${pid}` });
      second.child.kill('SIGKILL');
    }
    const { code } = await second.ended;
    if (!served && code !== 5)
      site.findings.push({
        failure: 'unexpected ends',
        what: `a second server ended with ${code}: ${second.output.stderr}`,
      });
  },
  command: runCommand,

  async 'upstream storm'({ models }, { lasts }) {
    models.weather = 'storm';
    await seconds(lasts);
    models.weather = 'ever';
  },
  async 'upstream gone'({ models }, { lasts }) {
    const comeBack = await models.leave();
    await seconds(lasts);
    await comeBack();
  },
  async 'engine hangs'({ engines: { docker } }, { lasts }) {
    if (!docker) return 'left out';
    docker.proxy.hang(true);
    await seconds(lasts);
    docker.proxy.hang(false);
  },
  'engine loses requests': losing('before it arrives'),
  'engine loses answers': losing('before it is answered'),
  async 'engine stopped'({ engines: { docker } }, { lasts }) {
    if (!docker) return 'left out';
    docker.daemon.signal('SIGSTOP');
    await seconds(lasts);
    docker.daemon.signal('SIGCONT');
  },
  'engine killed': ending('SIGKILL'),
  'engine restarted': ending('SIGTERM'),
  'slurmctld stopped': on('slurm', async ({ cluster }, { lasts }) => {
    await cluster.stopController();
    await seconds(lasts);
    await cluster.startController();
  }),
  'slurmctld hangs': on('slurm', async ({ cluster }, { lasts }) => {
    cluster.pause();
    await seconds(lasts * 2);
    cluster.proceed();
  }),
  'slurmd stopped': on('slurm', async ({ cluster }, { lasts }) => {
    await cluster.stopNode();
    await seconds(lasts);
    await cluster.startNode();
  }),
  'munged stopped': on('slurm', async ({ cluster }, { lasts }) => {
    await cluster.stopMunge();
    await seconds(lasts);
    await cluster.startMunge();
  }),
  /** Kills the daemon and every connection; what a tenant runs goes on. */
  'sshd killed': on('pool', async ({ hosts }, { lasts, chance }) => {
    const host = chance.pick(hosts);
    host.signal('SIGKILL', 'daemon');
    await seconds(lasts);
    await host.revive();
  }),
  'sshd hangs': on('pool', async ({ hosts }, { lasts, chance }) => {
    const host = chance.pick(hosts);
    host.signal('SIGSTOP', 'daemon');
    await seconds(lasts * 2);
    host.signal('SIGCONT', 'daemon');
  }),
  async 'machine killed'({ engines }, { chance }) {
    const killers = engines.all.filter((it) => it.kill);
    const engine = killers.length ? chance.pick(killers) : undefined;
    const running = (await engine?.list().catch(() => []))?.filter((it) => it.running) ?? [];
    if (!running.length) return 'left out';
    await engine?.kill?.(chance.pick(running)).catch(() => {}); // It may have ended already.
  },
  'disk full': full(0),
  'disk nearly full': full(256 * 1024),
  'clock ahead a little': clock(50),
  'clock ahead an hour': clock(3600),
  'clock ahead a day': clock(86_400),
  'clock back a little': clock(-50),
  'clock back an hour': clock(-3600),
  'start with the clock ahead': startWithClock(10 * 86_400),
  'start with the clock back': startWithClock(-10 * 86_400),
  'accept a clock ahead': acceptClock(900),
};
