import type { LineSession } from '../../../egress/line.ts';
import { commandOnInput } from '../../kit/command-on-input.ts';
import { egressCommand, egressSession } from '../../kit/egress.ts';
import { argvOf, type Program, type ProgramOrder } from '../../machine/program.ts';
import type { Pod } from './objects.ts';
import { watchdogOf } from './state.ts';
import type { Streams } from './stream.ts';

/** Runs `$2…` with `$1` as the type of its terminal: the API of exec takes no variables. */
const ON_TERMINAL = 'export TERM="$1"; shift; exec "$@"';

/**
 * Starts the program of an order in a pod. The URL of the request would be in the cluster's audit log, so a command goes over
 * standard input. On a terminal it cannot, as the terminal would show it.
 */
export async function beginIn(streams: Streams, pod: string, order: ProgramOrder): Promise<Program> {
  const { terminal } = order;
  if (terminal) {
    const argv = argvOf({ script: ON_TERMINAL, args: [terminal.term, ...argvOf(order)] });
    return streams.begin(pod, argv, terminal);
  }
  const { argv, head } = commandOnInput(order);
  const program = await streams.begin(pod, argv);
  const begunAt = performance.now();
  if (head?.length) program.stdin.write(head);
  return { ...program, begunAt };
}

/** Starts the program of the way out. It runs as the tenant, like all in a pod: a tenant who ends it closes their own way out. */
export async function beginEgress(streams: Streams, pod: Pod): Promise<LineSession> {
  const [watchdog] = watchdogOf(pod);
  const program = await streams.begin(pod.metadata.name, egressCommand(watchdog));
  program.stderr.resume(); // Unread output would hold up the stream.
  return egressSession(program);
}
