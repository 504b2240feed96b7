import { argvOf, type ProgramOrder } from '../machine/program.ts';

/** Reads `$1` bytes of standard input, exactly, as the last argument of the script `$2`, and runs that with the other arguments. */
const READ_AND_RUN = `command=$(dd bs="$1" count=1 iflag=fullblock 2>/dev/null); script=$2; shift 2
exec /bin/sh -c "$script" purser "$@" "$command"`;

/**
 * Returns the program of an order, and what has to come first on its standard input. Its command is sent there where arguments
 * appear in lists of processes, or in the audit log of a cluster.
 */
export function commandOnInput(order: Pick<ProgramOrder, 'script' | 'args' | 'command'>): {
  argv: string[];
  head: Buffer | undefined;
} {
  const { script, args, command } = order;
  if (command === undefined) return { argv: argvOf(order), head: undefined };
  const head = Buffer.from(command);
  return { argv: argvOf({ script: READ_AND_RUN, args: [String(head.length), script, ...args] }), head };
}
