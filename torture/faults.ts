import { setTimeout as pause } from 'node:timers/promises';
import { within } from '../test/helper/executable.ts';
import type { Chance } from './chance.ts';
import { runCommand } from './commands.ts';
import { lose } from './engine.ts';
import type { FaultName, Step } from './plan.ts';
import type { Rig } from './rig.ts';
import { tamper } from './tamper.ts';

/** Causes one fault, and undoes what it can. Returns `left out` if it cannot be caused here. */
type Fault = (rig: Rig, step: Step) => Promise<unknown>;

const seconds = (count: number) => pause(count * 1000);
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
    await seconds(1);
    allowance.end();
  };

const losing =
  (moment: Parameters<typeof lose>[1]): Fault =>
  async ({ machines }, { lasts, chance }) => {
    if (!machines) return 'left out';
    const until = performance.now() + lasts * 1000;
    while (performance.now() < until) {
      lose(machines.proxy, moment, chance.whole(1, 3));
      await seconds(0.4);
    }
    machines.proxy.watch();
  };

const ending =
  (signal: NodeJS.Signals): Fault =>
  async ({ machines }, { lasts }) => {
    if (!machines) return 'left out';
    machines.engine.signal(signal);
    await seconds(lasts);
    await machines.engine.revive();
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
    const { code, signal } = await within(site.end('SIGTERM'), () => 'SIGTERM ends the server');
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
  async 'engine hangs'({ machines }, { lasts }) {
    if (!machines) return 'left out';
    machines.proxy.hang(true);
    await seconds(lasts);
    machines.proxy.hang(false);
  },
  'engine loses requests': losing('before it arrives'),
  'engine loses answers': losing('before it is answered'),
  async 'engine stopped'({ machines }, { lasts }) {
    if (!machines) return 'left out';
    machines.engine.signal('SIGSTOP');
    await seconds(lasts);
    machines.engine.signal('SIGCONT');
  },
  'engine killed': ending('SIGKILL'),
  'engine restarted': ending('SIGTERM'),
  async 'machine killed'({ machines }, { chance }) {
    const running = (await machines?.list().catch(() => []))?.filter((it) => it.running) ?? [];
    if (!machines || !running.length) return 'left out';
    await machines.engine.docker
      .getContainer(chance.pick(running).id)
      .kill()
      .catch(() => {}); // It may have ended already.
  },
  'disk full': full(0),
  'disk nearly full': full(256 * 1024),
  'clock ahead a little': clock(50),
  'clock ahead an hour': clock(3600),
  'clock ahead a day': clock(86_400),
  'clock back a little': clock(-50),
  'clock back an hour': clock(-3600),
};
