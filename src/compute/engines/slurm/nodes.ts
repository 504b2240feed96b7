import { type SlurmCommands, wordsOf } from './command.ts';
import type { SlurmSettings } from './settings.ts';

/** A node of the partitions that jobs go to. `state` and `reason` are in Slurm's words. */
export type SlurmNode = { name: string; state: string; reason: string };

/** A line of `sinfo`: the partition, with an asterisk at the default one, the node, its state, and why it takes no jobs. */
const LINE = /^([^|*]+)(\*?)\|([^|]+)\|([^|]+)\|(.*)$/;
/** The states in which a node takes no jobs until something is done about it. */
const IS_DOWN = /^(down|drain|fail|error|inval)/;

/** Lists the nodes of the configured partitions, or of the default one. */
export async function listNodes(slurm: SlurmCommands, { partition }: SlurmSettings): Promise<SlurmNode[]> {
  const result = await slurm.run(['sinfo', '--all', '--noheader', '--Node', '--format=%P|%N|%T|%E']);
  if (result.code !== 0) throw new Error(`sinfo cannot tell the nodes: ${wordsOf(result)}`);
  const wanted = partition?.split(',');
  const nodes = new Map<string, SlurmNode>();
  for (const line of result.stdout.split('\n')) {
    const [, queue = '', isDefault, name = '', state = '', reason = ''] = LINE.exec(line) ?? [];
    const isOurs = wanted ? wanted.includes(queue) : isDefault === '*';
    if (isOurs) nodes.set(name, { name, state, reason });
  }
  return [...nodes.values()];
}

/** Returns those that take no jobs. */
export const nodesDown = (nodes: readonly SlurmNode[]) => nodes.filter(({ state }) => IS_DOWN.test(state));
/** Returns whether no node takes jobs. False where none is known. */
export const areAllDown = (nodes: readonly SlurmNode[]) => nodes.length > 0 && nodesDown(nodes).length === nodes.length;
