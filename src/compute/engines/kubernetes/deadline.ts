import type { Extended, Ref } from '../../backend.ts';
import { MOVE_MILLISECONDS, tellDeadline } from '../../kit/watchdog.ts';
import { finish } from '../../machine/program.ts';
import type { KubernetesApi } from './api.ts';
import { isConflict, isNotFound, isRefusal } from './api-error.ts';
import { POD_ANNOTATION, REARM_ANNOTATION } from './describe.ts';
import type { KubernetesJobs } from './jobs.ts';
import { type KubernetesJob, secondsOf } from './objects.ts';
import { deadlineOf, runningPod, watchdogOf } from './state.ts';
import type { Streams } from './stream.ts';

const OWN_OUTPUT_BYTES = 4096;
/** The Job controller has looked at a deadline this long after it. */
const REARM_SECONDS = 5;

/** Creates the calls that move the deadlines of Jobs. */
export function createDeadlines(
  api: KubernetesApi,
  { jobs, streams, now }: { jobs: KubernetesJobs; streams: Streams; now: () => number },
) {
  /**
   * Makes the controller look at a moved deadline again. That of the tests' real cluster (1.20) forgets a deadline that was moved
   * back, once it has looked at the earlier one; any other value, set after that, makes it look again. A Job that was changed since
   * it was read is left alone, since its deadline may be another: the next inspection sees that.
   */
  async function rearm({ metadata, spec }: KubernetesJob): Promise<void> {
    const at = Number(metadata.annotations?.[REARM_ANNOTATION] ?? Number.POSITIVE_INFINITY);
    if (now() < at + REARM_SECONDS || spec.activeDeadlineSeconds === undefined) return;
    const { name, uid, resourceVersion } = metadata;
    try {
      await api.patch(jobs.pathTo(name), {
        metadata: { uid, resourceVersion, annotations: { [REARM_ANNOTATION]: null } },
        spec: { activeDeadlineSeconds: spec.activeDeadlineSeconds + 1 },
      });
    } catch (error) {
      if (!isConflict(error)) throw error;
    }
  }

  /**
   * Moves both deadlines: first the watchdog's, then the Job's, which is the one that `inspect` reports. So the reported deadline
   * is in force, even if a call in between fails.
   */
  async function extend(tag: Ref, deadline: number): Promise<Extended> {
    const { job, pods } = await jobs.observe(tag);
    const pod = job && runningPod(job, pods);
    if (!pod || !job.status?.startTime) return { kind: 'refused', reason: 'the pod does not run' };
    const [program, ...directory] = watchdogOf(pod);
    const limits = { streamBytesMax: OWN_OUTPUT_BYTES, milliseconds: MOVE_MILLISECONDS };
    const moved = await tellDeadline(async () => {
      const watchdog = await streams.begin(pod.metadata.name, [program, String(deadline), ...directory]);
      return finish(watchdog, undefined, limits);
    });
    if (moved.kind !== 'done') return moved;
    const before = deadlineOf(job) ?? 0;
    const pending = job.metadata.annotations?.[REARM_ANNOTATION];
    const isPending = pending !== undefined && Number(pending) >= now();
    const rearmAt = isPending ? pending : deadline > before ? String(before) : null;
    try {
      await api.patch(jobs.pathOf(tag), {
        metadata: {
          uid: job.metadata.uid,
          annotations: { [POD_ANNOTATION]: pod.metadata.uid, [REARM_ANNOTATION]: rearmAt },
        },
        spec: { activeDeadlineSeconds: Math.max(1, deadline - secondsOf(job.status.startTime)) },
      });
    } catch (error) {
      if (isNotFound(error) || isRefusal(error)) return { kind: 'refused', reason: (error as Error).message };
      return { kind: 'unknown', reason: (error as Error).message };
    }
    return { kind: 'done' };
  }

  return { rearm, extend };
}
