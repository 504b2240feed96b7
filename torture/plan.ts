import { type Chance, chanceFrom } from './chance.ts';

/**
 * What is done to the server itself, one after the other; and beside that what the operator does at his desk, and what is
 * done to the world around. How often each is drawn. A clock leaps and comes back between two starts: whoever starts with
 * a wrong clock has to believe it.
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
    'machine killed': 3,
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
  /** Seconds of quiet before it, and how long it lasts where it lasts. */
  after: number;
  lasts: number;
  /** Chance of its own, so that what happens in one step does not shift the next. */
  chance: Chance;
};

const QUIET_SECONDS = { process: [0.3, 3], desk: [0.5, 4], world: [0.2, 3] } as const;
const LASTS_SECONDS = [0.5, 5] as const;

/** The steps of a lane, without end: they follow from the seed, and from which faults are meant. */
export function* stepsOf(lane: Lane, seed: number, only?: readonly string[]): Generator<Step> {
  const chance = chanceFrom(seed).apart(lane);
  const meant = Object.entries(LANES[lane]).filter(([name]) => only?.includes(name) ?? true);
  if (!meant.length) return;
  const weights = Object.fromEntries(meant) as Record<FaultName, number>;
  for (let number = 1; ; number++) {
    const name = chance.weighed(weights);
    const [least, most] = QUIET_SECONDS[lane];
    const [after, lasts] = [chance.between(least, most), chance.between(...LASTS_SECONDS)];
    yield { number, lane, name, after, lasts, chance: chance.apart(`${name} ${number}`) };
  }
}

/** A step as a person names it. */
export const nameOf = ({ lane, number, name }: Step) => `${lane} ${number}: ${name}`;
