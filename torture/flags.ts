import { randomInt } from 'node:crypto';
import { parseArgs } from 'node:util';
import { SECONDS, type Second } from './engine.ts';
import { LANES } from './plan.ts';

export type Flags = {
  minutes: number;
  seed: number;
  /** Names of the faults to cause; undefined means all. */
  only: readonly string[] | undefined;
  /** The backend of provider_two; drawn from the seed unless given. */
  second: Second | undefined;
};

const HELP = `npm run torture -- [flags]
  --minutes N   minutes of load and faults (3); afterwards everything still open is completed
  --seed S      repeats the same faults in the same order; random unless given
  --second NAME the backend of provider_two: ${SECONDS.join(' or ')}; drawn from the seed unless given
  --only a,b    causes only these faults: ${Object.values(LANES)
    .flatMap((lane) => Object.keys(lane))
    .join(', ')}`;

/** Reads the command line. Prints the help and returns undefined for --help. Throws TypeError for an unknown or bad flag. */
export function readFlags(): Flags | undefined {
  const { values } = parseArgs({
    options: {
      minutes: { type: 'string' },
      seed: { type: 'string' },
      only: { type: 'string' },
      second: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) {
    console.log(HELP);
    return undefined;
  }
  const minutes = Number(values.minutes ?? 3);
  const seed = Number(values.seed ?? randomInt(2 ** 31));
  if (!(minutes > 0)) throw new TypeError(`--minutes must be a number above 0\n${HELP}`);
  if (!Number.isInteger(seed)) throw new TypeError(`--seed must be a whole number\n${HELP}`);
  const second = SECONDS.find((it) => it === values.second);
  if (values.second !== undefined && !second) throw new TypeError(`--second must be ${SECONDS.join(' or ')}\n${HELP}`);
  return { minutes, seed, only: values.only?.split(','), second };
}
