import { readFileSync } from 'node:fs';
import { goBack } from '../access/writes.ts';
import type { Boot, Clock, Leap, Sighting, TimeSource } from '../base/clock.ts';
import { describeLeap } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import { parseJson } from '../base/parse-json.ts';
import { writeDurably } from '../files/durable-file.ts';
import type { Ledger } from '../ledger/ledger.ts';

/** The interval between two notes of the time at which the books were served. */
const NOTE_SECONDS = 60;
/** The interval between two checks whether the clock is synchronized. */
const ASK_SECONDS = 10;

/** Returns the time at which these books were last served; undefined where the file is missing or damaged. */
export function readSighting(file: string): Sighting | undefined {
  try {
    const { at, boot } = parseJson(readFileSync(file, 'utf8')) as Sighting;
    return Number.isFinite(at) ? { at, boot: isBoot(boot) ? boot : null } : undefined;
  } catch {
    return undefined;
  }
}
const isBoot = (it: Boot | null) => Number.isFinite(it?.seconds) && (it?.id === null || typeof it?.id === 'string');

type ClockWatchParts = {
  clock: Clock;
  ledger: Pick<Ledger, 'write'>;
  log: Log;
  time: TimeSource;
  /** Returns whether a time service vouches for the clock; `now` is the wall clock in Unix seconds. */
  isSynced(now: number): Promise<boolean | undefined>;
  /** The path of the file with the noted time. */
  file: string;
  /** Reports that the time could not be noted. */
  failed(error: unknown): void;
};

/** Notes the time at which the books are served, and ends a doubt of the clock when it is synchronized. */
export type ClockWatch = {
  /** Trusts the clock if the operator has accepted it or a time service vouches for it. */
  judge(isAccepted: boolean): Promise<void>;
  /** Logs a remaining doubt. */
  start(): void;
  stop(): Promise<void>;
};

/** Creates the watch of a clock (docs/decisions/0047). Not started, it writes no file. */
export function watchClock({ clock, ledger, log, time, isSynced, file, failed }: ClockWatchParts): ClockWatch {
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> | undefined;
  let isStarted = false;
  const note = noteTo(file, { clock, time, failed });

  const wall = () => Math.floor(time.wall() / 1000);

  async function believe(leap: Leap, by: string): Promise<void> {
    if (leap.direction === 'behind') {
      const reason = `${by}: the clock was ${leap.seconds} s behind the newest time in the books`;
      await ledger.write(goBack, { reason, now: wall() });
    }
    clock.believe();
    log.warn(
      { event: 'clock.accepted', direction: leap.direction, seconds: leap.seconds, by },
      'the clock is believed',
    );
  }

  async function believeIfSynced(): Promise<void> {
    const leap = clock.doubt();
    if (!leap || !(await isSynced(wall()))) return;
    const still = clock.doubt(); // The clock may have been corrected while the time service was asked.
    if (still) await believe(still, 'a time service vouches for it');
  }

  function schedule() {
    timer = setTimeout(
      () => {
        running = believeIfSynced()
          .catch(failed)
          .then(note)
          .then(() => {
            running = undefined;
            if (isStarted) schedule();
          });
      },
      (clock.doubt() ? ASK_SECONDS : NOTE_SECONDS) * 1000,
    );
    timer.unref();
  }

  return {
    async judge(isAccepted) {
      const leap = clock.doubt();
      if (!leap && isAccepted)
        log.info({ event: 'clock.agrees' }, 'the clock agrees with the books: nothing is accepted');
      if (!leap) return;
      if (isAccepted) return await believe(leap, 'accepted by the operator');
      await believeIfSynced();
    },
    start() {
      if (isStarted) return;
      isStarted = true;
      const leap = clock.doubt();
      if (leap)
        log.warn({ event: 'clock.doubted', direction: leap.direction, seconds: leap.seconds }, describeLeap(leap));
      void note();
      schedule();
    },
    async stop() {
      const wasStarted = isStarted;
      isStarted = false;
      clearTimeout(timer);
      await running;
      if (wasStarted) await note();
    },
  };
}

/** Returns a function that notes the time in a file, unless the clock is in doubt or has just jumped. */
function noteTo(
  file: string,
  { clock, time, failed }: Pick<ClockWatchParts, 'clock' | 'time' | 'failed'>,
): () => Promise<void> {
  let noting = Promise.resolve(); // One note is written after the other.
  let isFailing = false; // On a full disk it fails every minute, which is reported once.
  return () => {
    noting = noting.then(async () => {
      if (clock.holdsBlocked() !== undefined) return;
      try {
        const sighting: Sighting = { at: clock.now(), boot: time.boot?.() ?? null };
        await writeDurably(file, `${JSON.stringify(sighting)}\n`);
        isFailing = false;
      } catch (error) {
        if (!isFailing) failed(error);
        isFailing = true;
      }
    });
    return noting;
  };
}
