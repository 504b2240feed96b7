import type { Guest, Ref } from '../../backend.ts';
import { GIB } from '../../kit/claim.ts';
import { checkDisk } from './check.ts';
import { readSize } from './disk-watch.ts';
import type { Engine } from './engine.ts';

/** Tries the disk of a running container, for doctor. What it writes goes with the container. */

const TRIED_MIB = 64;
const MIB = 1024 ** 2;
const FILE = '/tmp/.purser-trial';
/** The time for which a file that was deleted stays open. It is measured in the meantime. */
const OPEN_SECONDS = 60;
const NOT_FOUND = 127;
/** The messages of programs at a limit that was reached. Others mean that the file system cannot reserve space at all. */
const FULL = /quota exceeded|no space left/i;
const NO_FILE = 3;

/** Takes space for a file that is deleted before that, and leaves it open behind. */
const takeDeleted = (mib: number) => `exec 3>${FILE} && rm ${FILE} || exit ${NO_FILE}
fallocate -l ${mib}M /proc/self/fd/3 && { sleep ${OPEN_SECONDS} </dev/null >/dev/null 2>&1 & }`;
/** Makes a file of this length, which takes no space. */
const makeLong = (bytes: number) => `dd if=/dev/zero of=${FILE} bs=1 count=0 seek=${bytes} 2>/dev/null`;

/** Describes what of a container's disk counts. Throws where its limit does not hold. */
export async function tryDisk(
  { engine, guest, ref }: { engine: Engine; guest: Guest; ref: Ref },
  { image, diskGb }: { image: string; diskGb: number },
): Promise<string> {
  const run = (command: string) => guest.exec(ref, { command, timeoutSeconds: 20, streamBytesMax: 4096 });
  const measure = () => engine.ask('size', (abortSignal) => readSize(engine, ref, abortSignal));

  const limit = await checkDisk(engine, image);
  const isEnforced = limit.limited !== 'nothing';
  const before = await measure();
  const { exitCode: taken, stderr } = await run(takeDeleted(isEnforced ? (diskGb + 1) * 1024 : TRIED_MIB));
  const words = stderr.toString().trim();
  if (taken === NOT_FOUND) return 'not tried, as the image has no fallocate';
  if (taken === NO_FILE) return `not tried, as nothing can be written to ${FILE}`;
  if (isEnforced) {
    if (taken !== 0 && !FULL.test(words)) return `not tried: ${words}`;
    const where = limit.limited === 'some' ? ` ${limit.where}` : '';
    if (taken !== 0) return `more than disk_gb cannot be written${where}, deleted files that are still open included`;
    throw new Error(`it wrote more than ${diskGb} GB to its disk, which the engine says it limits`);
  }
  if (taken !== 0) return `not tried: ${words}`;
  const after = await measure();
  if (before === 'failed' || after === 'failed')
    throw new Error('the engine cannot measure its disk: a lease can fill it');
  const countsDeleted = after - before >= TRIED_MIB * MIB;
  if ((await run(makeLong(diskGb * GIB + 1))).exitCode !== 0) return 'not tried, as the image has no dd';
  const long = await measure();
  if (long === 'failed' || long <= diskGb * GIB)
    throw new Error('a file larger than disk_gb is not measured: a lease can fill the disk');
  const deleted = countsDeleted ? 'count' : 'do not count. Only quotas count them';
  return `a lease that wrote more than disk_gb is ended; deleted files that are still open ${deleted}`;
}
