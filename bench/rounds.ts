import type { Flags } from './flags.ts';
import { generateGood, type Load, type Measured } from './generate.ts';
import { figure } from './table.ts';

/** A target's figures, each the median over the rounds, and the rounds themselves. */
export type Figures = Pick<Measured, 'perSecond' | 'p50' | 'p99' | 'firstByte' | 'cpu' | 'mainCpu'> & {
  rounds: readonly Measured[];
};

/** The fewest connections that warm up a target: over one, most of the time would pass between the requests. */
const WARM_CONNECTION_COUNT = 8;

/** Puts load on a target until V8 has compiled what the target is asked to do: a Purser needs some 10,000 requests for it. */
export async function warmUp(load: Load, { warmSeconds: seconds }: Pick<Flags, 'warmSeconds'>): Promise<void> {
  const { lockstep: _, count: __, ...flowing } = load;
  await generateGood({ ...flowing, connections: Math.max(load.connections, WARM_CONNECTION_COUNT), seconds });
}

/**
 * Puts the loads on their targets in turn, so that other activity on the machine affects all of them alike. Every target is
 * warmed up first, and each round begins with a different one.
 */
export async function interleave<N extends string>(
  targets: Record<N, Load>,
  { rounds, seconds, warmSeconds }: Pick<Flags, 'rounds' | 'seconds' | 'warmSeconds'>,
): Promise<Record<N, Figures>> {
  const names = Object.keys(targets) as N[];
  const results = Object.fromEntries(names.map((name) => [name, []])) as unknown as Record<N, Measured[]>;
  for (const name of names) await warmUp(targets[name], { warmSeconds });
  for (let round = 0; round < rounds; round++) {
    for (let i = 0; i < names.length; i++) {
      const name = names[(round + i) % names.length] as N;
      results[name].push(await generateGood({ ...targets[name], seconds }));
    }
  }
  return Object.fromEntries(names.map((name) => [name, figuresOf(results[name])])) as Record<N, Figures>;
}

function figuresOf(rounds: readonly Measured[]): Figures {
  const of = (name: Name) => median(rounds.map((it) => it[name]));
  return {
    perSecond: of('perSecond'),
    p50: of('p50'),
    p99: of('p99'),
    firstByte: of('firstByte'),
    cpu: of('cpu'),
    mainCpu: of('mainCpu'),
    rounds,
  };
}

type Name = Exclude<keyof Figures, 'rounds'>;

/** Divides one target's figure by the other's in the same round. */
const ratios = (one: Figures, other: Figures, name: Name): number[] =>
  one.rounds.map((it, round) => it[name] / (other.rounds[round] as Measured)[name]);

/** The median over the rounds of the ratio of one target's figure to the other's. */
export const ratio = (one: Figures, other: Figures, name: Name): number => median(ratios(one, other, name));

/** Formats that ratio with its least and its greatest: "0.31 (0.29 to 0.33)". */
export function times(one: Figures, other: Figures, name: Name): string {
  const all = ratios(one, other, name);
  return `${figure(median(all))} (${range(all)})`;
}

/** Formats how far some figures lie apart. */
export const range = (all: readonly number[]): string => `${figure(Math.min(...all))} to ${figure(Math.max(...all))}`;

/** Formats how far a target's rounds lie apart. */
export const rangeOf = ({ rounds }: Figures, name: Name): string => range(rounds.map((it) => it[name]));

/**
 * A time of a target when the machine does little else: the first quartile over the rounds. What else a host does only ever
 * lengthens a time, so that the quartile differs less from one run to the next than the median.
 */
export const quietTime = ({ rounds }: Pick<Figures, 'rounds'>, name: 'p50' | 'p99' | 'firstByte'): number =>
  quantile(
    rounds.map((it) => it[name]),
    1 / 4,
  );

/** A target's requests per second when the machine does little else: the third quartile over the rounds. */
export const quietRate = ({ rounds }: Figures): number =>
  quantile(
    rounds.map((it) => it.perSecond),
    3 / 4,
  );

export const median = (values: readonly number[]): number => quantile(values, 1 / 2);

/** Interpolates between the two nearest values. */
function quantile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (sorted.length - 1) * part;
  const [below, above] = [sorted[Math.floor(at)] as number, sorted[Math.ceil(at)] as number];
  return below + (above - below) * (at % 1);
}
