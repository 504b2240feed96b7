import { type Chance, chanceFrom } from './chance.ts';

/**
 * The faults and their weights, in three lanes that run side by side: faults of the server process, commands of the operator,
 * and faults of the surroundings. A clock leaps and returns between two starts, or a server starts with a wrong one.
 */
export const LANES = {
  process: {
    'kill -9': 10,
    'kill -9 twice': 4,
    'kill -9 at a write': 6,
    SIGTERM: 5,
    SIGSTOP: 4,
    'fsync fails': 4,
    'write fails': 2,
    'write finds no room': 3,
    'fsync is slow': 4,
    'second server': 4,
    'clock ahead a little': 2,
    'clock ahead an hour': 2,
    'clock ahead a day': 1,
    'clock back a little': 2,
    'clock back an hour': 2,
    'start with the clock ahead': 2,
    'start with the clock back': 1,
    'accept a clock ahead': 2,
  },
  desk: { command: 1 },
  world: {
    'upstream storm': 6,
    'upstream gone': 4,
    'engine hangs': 4,
    'engine loses requests': 5,
    'engine loses answers': 5,
    'engine stopped': 3,
    'engine killed': 2,
    'engine restarted': 1,
    'slurmctld stopped': 4,
    'slurmctld hangs': 3,
    'slurmd stopped': 2,
    'munged stopped': 2,
    'sshd killed': 6,
    'sshd hangs': 5,
    'machine killed': 4,
    'disk full': 7,
    'disk nearly full': 3,
  },
} as const;
export type Lane = keyof typeof LANES;
export type FaultName = { [L in Lane]: keyof (typeof LANES)[L] }[Lane] & string;

export type Step = {
  number: number;
  lane: Lane;
  name: FaultName;
  /** Seconds of quiet before it, and its duration in seconds, if it has one. */
  after: number;
  lasts: number;
  /** Its own random source, so that one step does not affect the next. */
  chance: Chance;
};

const QUIET_SECONDS = { process: [0.3, 3], desk: [0.5, 4], world: [0.2, 3] } as const;
const LASTS_SECONDS = [0.5, 5] as const;

/** Yields the steps of a lane, without end. They follow from the seed and from the selected faults. */
export function* stepsOf(lane: Lane, seed: number, only?: readonly string[]): Generator<Step> {
  const chance = chanceFrom(seed).apart(lane);
  const selected = Object.entries(LANES[lane]).filter(([name]) => only?.includes(name) ?? true);
  if (!selected.length) return;
  const weights = Object.fromEntries(selected) as Record<FaultName, number>;
  for (let number = 1; ; number++) {
    const name = chance.weighed(weights);
    const [min, max] = QUIET_SECONDS[lane];
    const [after, lasts] = [chance.between(min, max), chance.between(...LASTS_SECONDS)];
    yield { number, lane, name, after, lasts, chance: chance.apart(`${name} ${number}`) };
  }
}

/** Returns the readable name of a step. */
export const nameOf = ({ lane, number, name }: Step) => `${lane} ${number}: ${name}`;
