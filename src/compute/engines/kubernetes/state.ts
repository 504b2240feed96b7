import type { Machine, Ref } from '../../backend.ts';
import { RUNNING_WATCHDOG, wroteBesideDisk } from '../../kit/watchdog.ts';
import { CONTAINER, meaningOf, POD_ANNOTATION, WATCHDOG_PATH } from './describe.ts';
import { type KubernetesJob, type Pod, secondsOf } from './objects.ts';

/** Derives the state of a lease's machine from its Job and pods. */

/** Reasons that waiting does not change. */
const HOPELESS = new Set(['ErrImageNeverPull', 'InvalidImageName']);
const IMAGE_MISSING = new Set(['ErrImagePull', 'ImagePullBackOff', 'RegistryUnavailable', 'ErrImageNeverPull']);
const WORDS_CHARACTERS_MAX = 500;

/**
 * Returns when the controller of a Job, or the kubelet of a pod, ends it (Unix seconds); undefined while that has not seen it. A
 * pod's own end is after all that is sold of it.
 */
export function deadlineOf({ spec, status }: KubernetesJob | Pod): number | undefined {
  if (!status?.startTime || spec?.activeDeadlineSeconds === undefined) return undefined;
  return secondsOf(status.startTime) + spec.activeDeadlineSeconds;
}

/** Returns the pod in which a lease runs, while it does. */
export function runningPod(job: KubernetesJob, pods: readonly Pod[]): Pod | undefined {
  if (job.metadata.deletionTimestamp || endOf(job)) return undefined;
  const pod = currentPod(job, pods);
  return pod?.status?.phase === 'Running' && containerOf(pod)?.running ? pod : undefined;
}

/** Returns the machine, or undefined when neither the Job nor a pod of it is left. */
export function machineOf(ref: Ref, job: KubernetesJob | undefined, pods: readonly Pod[]): Machine | undefined {
  if (!job && !pods.length) return undefined;
  const ended = (note: string): Machine => ({ ref, state: 'ended', note: note.slice(0, WORDS_CHARACTERS_MAX) });
  if (!job) return ended('its Job is gone, and its pod is not yet');
  const pod = currentPod(job, pods);
  const last = pod ?? pods[0];
  if (last && isOverDisk(last)) return { ...ended(wordsOf(last) || whyEnded(last)), exceeded: 'disk' };
  if (job.metadata.deletionTimestamp) return ended('it is being removed');
  const end = endOf(job);
  if (end) return ended([last && whyEnded(last), `the Job ended: ${end}`].filter(Boolean).join('; '));
  if (!pod) {
    if (job.metadata.annotations?.[POD_ANNOTATION]) return ended('its pod was removed or replaced');
    return { ref, state: 'provisioning', waitsFor: 'the cluster has not made it yet' };
  }
  const phase = pod.status?.phase;
  if (phase === 'Succeeded' || phase === 'Failed') return ended(whyEnded(pod));
  if (runningPod(job, pods)) {
    const deadline = deadlineOf(job);
    return { ref, state: 'running', ...(deadline === undefined ? {} : { deadline }) };
  }
  const waiting = containerOf(pod)?.waiting;
  if (HOPELESS.has(waiting?.reason ?? '')) return ended(`${waiting?.reason}: ${waiting?.message ?? ''}`);
  if (containerOf(pod)?.terminated) return ended(whyEnded(pod));
  return { ref, state: 'provisioning', ...whyPending(pod) };
}

/** Returns a pod's container of the lease; a cluster may add others. */
export const ownContainer = ({ spec }: Pod) => spec?.containers?.find((it) => it.name === CONTAINER);

/** Returns the program that is a pod's watchdog, and the watchdog's directory where it needs one. */
export function watchdogOf(pod: Pod): [program: string, ...directory: string[]] {
  const [, , , directory] = ownContainer(pod)?.args ?? [];
  return directory === undefined ? [RUNNING_WATCHDOG] : [WATCHDOG_PATH, directory];
}

/** Returns the pod that is the machine: the one that a tenant has been in, or else the only one that is not being removed. */
function currentPod({ metadata }: KubernetesJob, pods: readonly Pod[]): Pod | undefined {
  const used = metadata.annotations?.[POD_ANNOTATION];
  return pods.find((it) => !it.metadata.deletionTimestamp && (used === undefined || it.metadata.uid === used));
}

const containerOf = ({ status }: Pod) => status?.containerStatuses?.find((it) => it.name === CONTAINER)?.state;

/**
 * Returns why a Job has ended, or why its controller is ending it (`FailureTarget`, while its pods are removed), in the words of
 * the controller; undefined while neither holds.
 */
export function endOf({ status }: KubernetesJob): string | undefined {
  const end = status?.conditions?.find(
    (it) => /^(Complete|Failed|FailureTarget)$/.test(it.type) && it.status === 'True',
  );
  return end && (end.reason ? `${end.reason} ${end.message ?? ''}`.trim() : end.type);
}

const wordsOf = ({ status }: Pod) => [status?.reason, status?.message].filter(Boolean).join(': ');

/** Returns whether the pod wrote more than its own limit; a node whose disk is full reports other words. */
const isOverDisk = (pod: Pod) => isEvicted(pod) || wroteBesideDisk(containerOf(pod)?.terminated?.exitCode);

const isEvicted = ({ status }: Pod) =>
  status?.reason === 'Evicted' &&
  /exceed/i.test(status.message ?? '') &&
  /ephemeral|emptydir/i.test(status.message ?? '');

function whyEnded(pod: Pod): string {
  const ended = containerOf(pod)?.terminated;
  const own =
    ended &&
    (ended.reason === 'OOMKilled'
      ? 'it ran out of memory'
      : (meaningOf(ended.exitCode) ??
        `its first process ended with exit code ${ended.exitCode} (${[ended.reason, ended.message].filter(Boolean).join(': ')})`));
  return [own, wordsOf(pod)].filter(Boolean).join('; ') || 'its pod ended';
}

/** Returns why it does not run yet: for the tenant in plain words, for the operator in those of the cluster. */
function whyPending(pod: Pod): Pick<Machine, 'note' | 'waitsFor'> {
  const unscheduled = pod.status?.conditions?.find((it) => it.type === 'PodScheduled' && it.status === 'False');
  if (unscheduled) return { note: wordsOfStatus(unscheduled), waitsFor: 'the cluster has no free place for it' };
  const waiting = containerOf(pod)?.waiting;
  if (!waiting?.reason) return { waitsFor: 'its container is being made' };
  if (IMAGE_MISSING.has(waiting.reason))
    return { note: wordsOfStatus(waiting), waitsFor: 'its image cannot be pulled' };
  const isUsual = /^(ContainerCreating|PodInitializing)$/.test(waiting.reason);
  return { ...(isUsual ? {} : { note: wordsOfStatus(waiting) }), waitsFor: 'its container is being made' };
}

const wordsOfStatus = ({ reason = '', message }: { reason?: string; message?: string }) =>
  [reason, message].filter(Boolean).join(': ').slice(0, WORDS_CHARACTERS_MAX);
