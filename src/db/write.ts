import type { Tx } from './handle.ts';

/**
 * Data that can cross between the threads: it survives a structured clone. Objects with methods do not, except bytes, which
 * arrive as a Buffer.
 */
export type Data =
  | string
  | number
  | bigint
  | boolean
  | null
  | undefined
  | Uint8Array
  | readonly Data[]
  | { readonly [name: string]: Data };

/**
 * A write by its name. Its data and the rows alone determine its changes, so that it can run in another thread than its caller
 * (docs/decisions/0002).
 */
export type Write<D, R> = {
  readonly name: string;
  readonly run: (tx: Tx, data: D) => R;
  /** True for a part of a paid request: it moves money, and changes no credential. */
  readonly isPaid: boolean;
};

/** The result of a write that has none. */
type Nothing = ReturnType<() => void>;

const defined = new Map<string, Write<never, unknown>>();

/**
 * Defines a write. `run` is synchronous, changes rows and nothing else, and may run more than once: it runs entirely or
 * not at all. Throws when the name is taken.
 */
export function defineWrite<D extends Data, R extends Data | Nothing>(
  name: string,
  run: (tx: Tx, data: D) => R,
  { isPaid }: Pick<Write<D, R>, 'isPaid'> = { isPaid: false },
): Write<D, R> {
  if (defined.has(name)) throw new Error(`there are two writes of the name ${name}`);
  const write = { name, run, isPaid };
  defined.set(name, write);
  return write;
}

/** Returns the write of this name. Throws when its module has not been loaded. */
export function writeOf(name: string): Write<unknown, unknown> {
  const write = defined.get(name);
  if (!write) throw new Error(`there is no write of the name ${name}`);
  return write as Write<unknown, unknown>;
}
