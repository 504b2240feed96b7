import { warning } from '../compute/finding.ts';
import type { ProcessLimits } from '../net/listen.ts';
import { askServer } from '../operator/ask.ts';
import type { CommandOutput } from '../operator/commands.ts';

/** A running server's report on itself (src/operator/examination.ts). */
export type ServerExamination = CommandOutput<'server.examine'>;

const MIB = 1024 * 1024;
/** Fewer descriptors or less memory than these are few for a server of agents. */
const OPEN_FILES_FEW = 4096;
const MEMORY_BYTES_LITTLE = 256 * MIB;

/**
 * Asks the server that listens on `socket` to examine itself. Returns undefined without one, and where it does not answer,
 * which the check `server` reports.
 */
export async function examineServer(socket: string): Promise<ServerExamination | undefined> {
  try {
    return (await askServer(socket, 'server.examine', {}))?.value as ServerExamination | undefined;
  } catch {
    return undefined;
  }
}

/** Judges the limits of the server's process. */
export function judgeLimits({ openFiles, memoryBytes, cpuSeconds }: ProcessLimits): string {
  const limits = [
    `${openFiles ?? 'any number of'} open files`,
    memoryBytes === null ? 'all memory' : `${Math.round(memoryBytes / MIB)} MiB of memory`,
    ...(cpuSeconds === null ? [] : [`${cpuSeconds} s of processor time`]),
  ].join(', ');
  const remedies = [
    ...(openFiles !== null && openFiles < OPEN_FILES_FEW
      ? [`Each connection and each call takes a file: set LimitNOFILE of the unit (ulimit -n) to 65536.`]
      : []),
    ...(memoryBytes !== null && memoryBytes < MEMORY_BYTES_LITTLE
      ? [`The kernel ends it when it needs more memory: give it ${MEMORY_BYTES_LITTLE / MIB} MiB or more.`]
      : []),
    ...(cpuSeconds !== null ? ['The kernel ends it after that time: remove LimitCPU of the unit (ulimit -t).'] : []),
  ];
  return remedies.length ? warning(`${limits}. ${remedies.join(' ')}`) : limits;
}
