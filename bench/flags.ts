import { tmpdir } from 'node:os';
import { parseArgs } from 'node:util';

export type Flags = {
  /** Letters of the rows to run; undefined means all. */
  only: readonly string[] | undefined;
  /** Length of one round of load. */
  seconds: number;
  /** Rounds of each target; medians are reported. */
  rounds: number;
  /** Length of the load on each target before its first round. */
  warmSeconds: number;
  /** Size of the filled database. */
  wallets: number;
  entries: number;
  /** Number of operations before memory is measured again. */
  operations: number;
  /** Number of same-key races. */
  races: number;
  /** Prints the rows of docs/performance.md as a Markdown table. */
  markdown: boolean;
  /** Where the data directories are made: on the disk to be measured. */
  dir: string;
};

const HELP = `npm run bench -- [flags]
npm run bench -- backends --help
  --only a,b,…    these rows
  --seconds N     seconds of one round of load (2)
  --rounds N      rounds of each target, interleaved; medians are reported (5)
  --warm N        seconds of load on each target before its first round (12)
  --wallets N     wallets in the filled database (100000)
  --entries N     journal entries in it (1000000)
  --operations N  operations before memory is measured again (100000)
  --races N       same-key races (1000)
  --full          1000000 wallets, 10000000 entries, 1000000 operations
  --markdown      prints the rows of docs/performance.md as a Markdown table
  --dir DIR       where the data directories are made (the system's temporary directory)`;

/** Reads the command line. Prints the help and returns undefined for --help. Throws TypeError for an unknown or bad flag. */
export function readFlags(): Flags | undefined {
  const count = { type: 'string' } as const;
  const { values } = parseArgs({
    options: {
      only: { type: 'string' },
      seconds: count,
      rounds: count,
      warm: count,
      wallets: count,
      entries: count,
      operations: count,
      races: count,
      full: { type: 'boolean', default: false },
      markdown: { type: 'boolean', default: false },
      dir: { type: 'string', default: tmpdir() },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) {
    console.log(HELP);
    return undefined;
  }
  const size = values.full
    ? { wallets: 1_000_000, entries: 10_000_000, operations: 1_000_000 }
    : { wallets: 100_000, entries: 1_000_000, operations: 100_000 };
  const number = (
    name: 'seconds' | 'rounds' | 'warm' | 'wallets' | 'entries' | 'operations' | 'races',
    otherwise: number,
  ) => {
    const value = Number(values[name] ?? otherwise);
    if (!(value > 0)) throw new TypeError(`--${name} must be a number above 0\n${HELP}`);
    return value;
  };
  return {
    only: values.only?.split(','),
    dir: values.dir,
    markdown: values.markdown,
    seconds: number('seconds', 2),
    rounds: number('rounds', 5),
    warmSeconds: number('warm', 12),
    wallets: number('wallets', size.wallets),
    entries: number('entries', size.entries),
    operations: number('operations', size.operations),
    races: number('races', 1000),
  };
}
