import type { Ref } from '../../backend.ts';
import type { KubernetesApi } from './api.ts';
import { isConflict } from './api-error.ts';
import { jobName, LEASE_LABEL, POD_ANNOTATION, TAG_ANNOTATION } from './describe.ts';
import type { KubernetesJob, Paths, Pod } from './objects.ts';
import { deadlineOf, endOf, runningPod } from './state.ts';

/**
 * A pod this long past its deadline does not run: its watchdog and its kubelet have ended it, if its node lives. A dead node cannot
 * confirm that, so the pod is then removed from the API without confirmation.
 */
const FORCE_SECONDS = 300;

/** Finds and removes the Job and the pods of a lease. */
export function createJobs(api: KubernetesApi, paths: Paths, now: () => number) {
  const pathTo = (name: string) => `${paths.jobs}/${name}`;
  const pathOf = (tag: string) => pathTo(jobName(tag));
  /** Returns the pods with this tag. A server that returns others as well has ignored the label. */
  const podsOf = async (tag: string) => {
    const pods = await api.list<Pod>(paths.pods, { labelSelector: `${LEASE_LABEL}=${jobName(tag)}` });
    return pods.filter((it) => it.metadata.labels?.[LEASE_LABEL] === jobName(tag));
  };

  /** Returns the Job with this tag. Throws when another one has its name: nothing is then known of ours. */
  async function findJob(tag: string): Promise<KubernetesJob | undefined> {
    const job = await api.find<KubernetesJob>(pathOf(tag));
    if (job && job.metadata.annotations?.[TAG_ANNOTATION] !== tag)
      throw new Error(`the Job ${job.metadata.name} is there, and is not ${tag}`);
    return job;
  }

  /**
   * Reads the pods first: otherwise a pod could lack its Job only because both were made in between. Reads those of an ended Job,
   * and those gone since, again: they may have ended later, and only they show why.
   */
  async function observe(tag: string): Promise<{ job: KubernetesJob | undefined; pods: Pod[] }> {
    const pods = await podsOf(tag);
    const job = await findJob(tag);
    if (!job || endOf(job) === undefined) return { job, pods };
    const newer = await podsOf(tag);
    const gone = pods.filter(({ metadata }) => !newer.some((it) => it.metadata.uid === metadata.uid));
    return { job, pods: [...newer, ...gone] };
  }

  /** Deletes in the foreground: the API keeps the Job until its pods are gone, and its controller makes no other pod. */
  async function destroy(tag: Ref): Promise<void> {
    const { job, pods } = await observe(tag);
    if (job && !job.metadata.deletionTimestamp)
      await removeOnly(pathTo(job.metadata.name), job.metadata.uid, { propagationPolicy: 'Foreground' });
    for (const pod of pods) {
      const { metadata } = pod;
      const path = `${paths.pods}/${metadata.name}`;
      // Somebody may have deleted the Job alone.
      const isLong = now() > (deadlineOf(job ?? pod) ?? Number.POSITIVE_INFINITY) + FORCE_SECONDS;
      if (!metadata.deletionTimestamp) await removeOnly(path, metadata.uid, {});
      else if (isLong) await removeOnly(path, metadata.uid, { gracePeriodSeconds: 0 });
    }
  }

  /** Removes only the object with this uid: another object of that name is not ours. */
  async function removeOnly(path: string, uid: string, options: object): Promise<void> {
    try {
      await api.remove(path, { ...options, preconditions: { uid } });
    } catch (error) {
      if (!isConflict(error)) throw error;
    }
  }

  /** Returns the pod to run something in, and whether a tenant may have been there. */
  async function podOf(tag: Ref): Promise<{ pod: Pod; isUsed: boolean }> {
    const { job, pods } = await observe(tag);
    const pod = job && runningPod(job, pods);
    if (!pod) throw new Error(`the pod of ${tag} does not run`);
    return { pod, isUsed: job.metadata.annotations?.[POD_ANNOTATION] !== undefined };
  }

  return { pathTo, pathOf, find: findJob, observe, destroy, podOf };
}
export type KubernetesJobs = ReturnType<typeof createJobs>;
