import type { Extended, Pausing, Ref } from '../backend.ts';
import type { Reservations } from './capacity.ts';
import { type Deadlines, UNKNOWN_ARGUMENT, untilStarted } from './watchdog.ts';

/** Stopping the processes of a machine is repeated: a command that Purser itself has just begun there may have come in between. */
const STOP_COUNT = 3;
/** The exit codes of a program that cannot be started. A tenant may have removed it; then it has stopped nothing either. */
const UNSTARTED: readonly number[] = [126, 127];

/** The calls of an engine that stop and continue what runs in a machine. Each throws when its outcome is unknown. */
export type Signals = {
  /** Runs the watchdog's program as the tenants' user, and returns its exit code. */
  signal(ref: Ref, what: 'stop' | 'continue'): Promise<number>;
  /** Runs `PROGRAM stopped` as the watchdog's user, whom no tenant can deceive, and returns its exit code. */
  look(ref: Ref): Promise<number>;
};
type PauseCalls = Signals & {
  /** Limits the processor time of a machine to the least that the engine takes, or to what was sold. */
  limitCpu(ref: Ref, to: 'least' | 'sold'): Promise<void>;
};

/** Returns the part of a pause that counts what is sold. `free` remembers what is, and forgets it when something is given back. */
export const roomOfPaused = (
  { takeRoom, release }: Pick<Reservations, 'takeRoom' | 'release'>,
  free: { forget(): void },
): Pick<Pausing, 'takeRoom' | 'letGo'> => ({
  takeRoom,
  letGo(tag) {
    release(tag);
    free.forget();
  },
});

/** Stops every process but the watchdog's. Returns why that failed; undefined where nothing runs any more. */
export async function stopProcesses({ signal, look }: Signals, ref: Ref): Promise<string | undefined> {
  for (let rounds = STOP_COUNT; rounds > 0; rounds--) {
    await signal(ref, 'stop');
    const looked = await look(ref);
    if (looked === 0) return undefined;
    if (looked === UNKNOWN_ARGUMENT) return 'its watchdog is of an earlier version, which cannot pause';
  }
  return 'not all of its processes stop';
}

/** Continues what was stopped. */
export async function continueProcesses({ signal }: Pick<Signals, 'signal'>, ref: Ref): Promise<Extended> {
  const { exitCode: code } = await untilStarted(async () => ({ exitCode: await signal(ref, 'continue') }));
  if (code === 0 || code === UNKNOWN_ARGUMENT || UNSTARTED.includes(code)) return { kind: 'done' };
  return { kind: 'unknown', reason: `its processes were not continued (${code})` };
}

/**
 * Creates the pause of machines whose first process is a watchdog (docs/decisions/0082). That runs on, so the deadline holds
 * without Purser. A pause moves the deadline once all has stopped, a resumption before anything of a tenant runs: so it shows how
 * far either came. The machine has its processor both times: without one a command takes seconds, and longer beside a process that
 * woke itself.
 */
export function createPausing(
  { limitCpu, ...signals }: PauseCalls,
  deadlines: Pick<Deadlines, 'move'>,
  room: Pick<Pausing, 'takeRoom' | 'letGo'>,
): Pausing {
  return {
    ...room,

    async begin(ref, deadline, stopped): Promise<Extended> {
      const fault = await stopProcesses(signals, ref);
      if (fault !== undefined) return { kind: 'refused', reason: fault };
      await stopped?.();
      const moved = await deadlines.move(ref, deadline);
      if (moved.kind === 'done') await limitCpu(ref, 'least');
      return moved;
    },

    complete: (ref) => limitCpu(ref, 'least'),

    async end(ref, deadline): Promise<Extended> {
      await limitCpu(ref, 'sold');
      const moved = await deadlines.move(ref, deadline);
      if (moved.kind === 'refused') await limitCpu(ref, 'least'); // It stays paused.
      return moved.kind === 'done' ? continueProcesses(signals, ref) : moved;
    },
  };
}
