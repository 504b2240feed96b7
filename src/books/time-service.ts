import { statSync } from 'node:fs';
import { searchPath } from '../config/config.ts';
import { findPrograms, outputOf } from '../files/programs.ts';

/** The return value of adjtimex(2) for a clock that is not synchronized. */
const TIME_ERROR = 5;
/** The file that systemd-timesyncd touches at each synchronization, at least every 2048 s; see systemd-timesyncd.service(8). */
const TIMESYNC_FILE = '/run/systemd/timesync/synchronized';
const TIMESYNC_SECONDS_MAX = 2 * 2048;

/**
 * Returns whether a time service keeps this machine's clock right, by any program here that can ask the kernel (adjtimex(2),
 * STA_UNSYNC) or chronyd, which sets that state only with `rtcsync`. Where none can, as in a container, the file of
 * systemd-timesyncd decides. Undefined if there is no evidence. `now` is the wall clock in Unix seconds.
 */
export async function isClockSynced(now: number): Promise<boolean | undefined> {
  const ask = async (name: string, ...args: string[]) => {
    const [program] = findPrograms(name, searchPath());
    return program && (await outputOf(program, ...args));
  };
  const byService = await ask('timedatectl', 'show', '--property=NTPSynchronized', '--value');
  if (byService === 'yes') return true;
  const byKernel = (await ask('adjtimex', '--print')) ?? (await ask('busybox', 'adjtimex'));
  const [, state] = /return value\s*[:=]\s*(\d)/.exec(byKernel ?? '') ?? [];
  if (state !== undefined && Number(state) !== TIME_ERROR) return true;
  const [, leap] = /^Leap status\s*:\s*(.+)$/m.exec((await ask('chronyc', '-n', 'tracking')) ?? '') ?? [];
  if (leap !== undefined) return leap !== 'Not synchronised';
  if (byService === 'no' || state !== undefined) return false;
  const touched = statSync(TIMESYNC_FILE, { throwIfNoEntry: false });
  if (!touched) return undefined;
  return Math.abs(now - touched.mtimeMs / 1000) < TIMESYNC_SECONDS_MAX;
}
