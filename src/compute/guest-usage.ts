import type { Backend, GpuUsage, Ref, Usage } from './backend.ts';
import { CPU_BYTES_MAX, cpuTimeIn, READ_CPU } from './cpu-time.ts';

/** The time limit of the command, in seconds. A command that its machine cannot kill takes longer. */
export const GUEST_USAGE_SECONDS = 10;
/** The most bytes that the line of a GPU takes, and the mark before them. */
const LINE_BYTES_MAX = 64;

/**
 * Prints `purser-gpus`, and for each GPU that the machine sees a line `PERCENT, MIB`: the part of its last moments in which anything
 * ran on it, and the memory in use. Only NVIDIA's tool is known here.
 */
const READ_GPUS = `echo purser-gpus
nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader,nounits`;

/** A whole number, or the driver's word for what it does not report: `[N/A]` of a divided GPU, or `[Insufficient Permissions]`. */
const FIELD = String.raw`(\d{1,7}|\[[\w /!]+\]|N/A|ERR!)`;
const GPU_LINE = new RegExp(`^${FIELD}, ${FIELD}$`, 'gm');
const PERCENT_MAX = 100;
const MIB = 1024 ** 2;

/** The parts of a machine's use that are to be read: its processor time, and the GPUs that it was sold with. */
type UsageParts = { cpu: boolean; gpus: number };

/**
 * Reads the use of a machine by one command inside it. Its tenant can falsify the answer, so nothing is charged by it. Throws when
 * the machine cannot be asked.
 */
export async function readGuestUsage(backend: Backend, ref: Ref, { cpu, gpus }: UsageParts): Promise<Usage> {
  const parts = [...(cpu ? [`(${READ_CPU}\n)`] : []), ...(gpus > 0 ? [READ_GPUS] : [])];
  if (!parts.length) return {};
  const { stdout, stdoutTruncated } = await backend.guest.exec(ref, {
    command: parts.join('\n'),
    timeoutSeconds: GUEST_USAGE_SECONDS,
    streamBytesMax: CPU_BYTES_MAX + LINE_BYTES_MAX * (gpus + 1),
  });
  const output = stdout.toString('latin1');
  const time: ReturnType<typeof cpuTimeIn> = cpu ? cpuTimeIn(output) : { source: 'none' };
  return {
    ...(time.source !== 'none' && { cpuSeconds: time.usedSeconds }),
    ...(!stdoutTruncated && { gpus: gpusIn(output, gpus) }),
  };
}

/**
 * Reads what was printed of GPUs; undefined where that is nothing, and where more are listed than were sold: it is not known which
 * those are.
 */
function gpusIn(output: string, sold: number): GpuUsage[] | undefined {
  const [, listed = ''] = output.split('purser-gpus\n', 2);
  const gpus = [...listed.matchAll(GPU_LINE)].map(([, percent, mib]): GpuUsage => {
    const [utilizationPercent, memory] = [Number(percent), Number(mib)];
    return {
      ...(utilizationPercent <= PERCENT_MAX && { utilizationPercent }),
      ...(memory >= 0 && { memoryBytes: memory * MIB }),
    };
  });
  const isTold = gpus.length <= sold && gpus.some((it) => Object.keys(it).length > 0);
  return isTold ? gpus : undefined;
}
