import type { Backend, Created, Extended, Machine, Owned, Ref, Spec } from '../../backend.ts';
import { refused } from '../../kit/created.ts';
import { offersOf, quoteOf } from '../../kit/priced.ts';
import { createRecent } from '../../kit/recent.ts';
import { MOVE_MILLISECONDS, RUNNING_WATCHDOG } from '../../kit/watchdog.ts';
import { createGuest } from '../../machine/guest.ts';
import { finish } from '../../machine/program.ts';
import { ApiError, ApiUnreachable, isNotFound, openApi } from './api.ts';
import { checkCluster } from './check.ts';
import { type Cluster, readCluster } from './credentials.ts';
import {
  CONTAINER,
  CREATED_ANNOTATION,
  describeJob,
  describePod,
  describePolicies,
  jobName,
  LEASE_LABEL,
  POD_ANNOTATION,
  REARM_ANNOTATION,
  sizeOf,
  TAG_ANNOTATION,
  WATCHDOG_PATH,
} from './describe.ts';
import { type Event, type Job, type Pod, pathsOf, secondsOf } from './objects.ts';
import { beginIn } from './program.ts';
import type { KubernetesSettings } from './settings.ts';
import { deadlineOf, machineOf, runningPod } from './state.ts';
import { createStreams } from './stream.ts';

type Order = Parameters<Backend['create']>[0];

const OWN_OUTPUT_BYTES = 4096;
/** The Job controller has looked at a deadline this long after it. */
const REARM_SECONDS = 5;
/**
 * A pod this long past its deadline does not run: its watchdog and its kubelet have ended it, if its node lives. A dead node cannot
 * confirm that, so the pod is then removed from the API without confirmation.
 */
const FORCE_SECONDS = 300;
/** Every quota reports itself with these words (k8s.io/apiserver, resourcequota). */
const QUOTA = /exceeded quota|is forbidden: .*quota/i;

type KubernetesSurroundings = {
  /** Unix seconds. */
  now: () => number;
  cluster?: () => Promise<Cluster>;
};

/**
 * Jobs of a Kubernetes cluster, one a lease, of one pod each. The tag is the reference; the Job's name is made of it, so a
 * second create is refused by the API, and a lease is found without a list.
 */
export function openKubernetesBackend(
  settings: KubernetesSettings,
  { now, cluster = () => readCluster(settings, now) }: KubernetesSurroundings,
): Backend {
  const api = openApi(cluster);
  const paths = pathsOf(settings.namespace);
  const streams = createStreams(api, paths.pods);
  const guest = createGuest(async (tag, order) => beginIn(streams, await podOf(tag), order), {
    relay: WATCHDOG_PATH,
    async proofOf(tag) {
      const { job, pods } = await observe(tag);
      const pod = job && runningPod(job, pods);
      return pod ? { gpus: gpusOf(pod) } : 'the pod is gone';
    },
  });
  const room = createRecent(freeSpecs);

  const jobPath = (tag: string) => `${paths.jobs}/${jobName(tag)}`;
  /** Returns the pods with this tag. A server that returns others as well has ignored the label. */
  const podsOf = async (tag: string) => {
    const pods = await api.list<Pod>(paths.pods, { labelSelector: `${LEASE_LABEL}=${jobName(tag)}` });
    return pods.filter((it) => it.metadata.labels?.[LEASE_LABEL] === jobName(tag));
  };

  /** Returns the Job with this tag. Throws when another one has its name: nothing is then known of ours. */
  async function findJob(tag: string): Promise<Job | undefined> {
    const job = await api.find<Job>(jobPath(tag));
    if (job && job.metadata.annotations?.[TAG_ANNOTATION] !== tag)
      throw new Error(`the Job ${job.metadata.name} is there, and is not ${tag}`);
    return job;
  }

  /** Reads the pods first: otherwise a pod could lack its Job only because both were made in between. */
  async function observe(tag: string): Promise<{ job: Job | undefined; pods: Pod[] }> {
    const pods = await podsOf(tag);
    return { job: await findJob(tag), pods };
  }

  /** Makes sure that the policies exist before any lease does. They may have been removed. */
  async function ensurePolicies(): Promise<void> {
    await Promise.all(
      describePolicies().map(async (policy) => {
        if (await api.find(`${paths.policies}/${policy.metadata.name}`)) return;
        await api.create(paths.policies, policy).catch((error) => {
          if (!isConflict(error)) throw error;
        });
      }),
    );
  }

  /** Has the API validate the pod without making it: a Job is admitted whatever its pods lack. Throws the API's error. */
  const tryPod = (order: Pick<Order, 'tag' | 'quote' | 'deadline'>) =>
    api.create(`${paths.pods}?dryRun=All`, {
      apiVersion: 'v1',
      kind: 'Pod',
      ...withName(describePod(settings, order, now()), jobName(order.tag)),
    });

  async function create(order: Order): Promise<Created> {
    try {
      await ensurePolicies();
      await tryPod(order);
    } catch (error) {
      return refuseOrFind(order.tag, error); // This attempt has not requested anything yet.
    }
    const created = await make(order);
    room.forget();
    return created;
  }

  async function make(order: Order): Promise<Created> {
    try {
      await api.create(paths.jobs, describeJob(settings, order, now()));
      return { kind: 'created', ref: order.tag };
    } catch (error) {
      const wasSent = !(error instanceof ApiUnreachable) || error.sent;
      if (wasSent && !isRefusal(error)) return { kind: 'unknown', reason: textOf(error) };
      return refuseOrFind(order.tag, error);
    }
  }

  /**
   * Turns a certain failure of this attempt into a refusal, unless an earlier attempt has made the Job: that is one reason for such
   * a failure.
   */
  async function refuseOrFind(tag: string, error: unknown): Promise<Created> {
    if (!(error instanceof ApiError)) return refuse(error);
    try {
      if (await findJob(tag)) return { kind: 'created', ref: tag };
    } catch (fault) {
      if (isConflict(error)) return { kind: 'unknown', reason: textOf(fault) };
    }
    return refuse(error);
  }

  async function inspect(tag: Ref, { onlyLook = false } = {}): Promise<Machine | undefined> {
    const { job, pods } = await observe(tag);
    const machine = machineOf(tag, job, pods);
    if (job && machine?.state === 'running' && !onlyLook) await rearm(job);
    if (job && machine?.state === 'provisioning' && !pods.length) {
      const words = await whyNoPod(job);
      if (words) return { ...machine, note: words };
    }
    return machine;
  }

  /**
   * Makes the controller look at a moved deadline again. That of the tests' real cluster (1.20) forgets a deadline that was moved
   * back, once it has looked at the earlier one; any other value, set after that, makes it look again. A Job that was changed since
   * it was read is left as it is, since its deadline may be another: the next inspection sees that.
   */
  async function rearm({ metadata, spec }: Job): Promise<void> {
    const at = Number(metadata.annotations?.[REARM_ANNOTATION] ?? Number.POSITIVE_INFINITY);
    if (now() < at + REARM_SECONDS || spec.activeDeadlineSeconds === undefined) return;
    const { name, uid, resourceVersion } = metadata;
    try {
      await api.patch(`${paths.jobs}/${name}`, {
        metadata: { uid, resourceVersion, annotations: { [REARM_ANNOTATION]: null } },
        spec: { activeDeadlineSeconds: spec.activeDeadlineSeconds + 1 },
      });
    } catch (error) {
      if (!isConflict(error)) throw error;
    }
  }

  /** Returns the controller's reason why it cannot make a pod. Purser may lack the right to read it, which is optional. */
  async function whyNoPod({ metadata }: Job): Promise<string | undefined> {
    const query = { fieldSelector: `involvedObject.uid=${metadata.uid}` };
    const events = await api.list<Event>(paths.events, query).catch(() => []);
    return events.findLast((it) => it.reason === 'FailedCreate')?.message?.slice(0, 500);
  }

  async function listOwned(prefix: string): Promise<Owned[]> {
    const query = { labelSelector: LEASE_LABEL };
    const pods = Map.groupBy(await api.list<Pod>(paths.pods, query), tagOfObject);
    const jobs = new Map((await api.list<Job>(paths.jobs, query)).map((it) => [tagOfObject(it), it]));
    return [...new Set([...jobs.keys(), ...pods.keys()])]
      .filter((tag) => tag.startsWith(prefix))
      .map((tag) => {
        const job = jobs.get(tag);
        const its = pods.get(tag) ?? [];
        const { metadata } = (job ?? its[0]) as Job | Pod;
        const created = metadata.annotations?.[CREATED_ANNOTATION];
        const createdAt = created === undefined ? secondsOf(metadata.creationTimestamp) : Number(created);
        return { ...(machineOf(tag, job, its) as Machine), tag, createdAt };
      });
  }

  /** Deletes in the foreground: the API keeps the Job until its pods are gone, and its controller makes no other pod. */
  async function destroy(tag: Ref): Promise<void> {
    const { job, pods } = await observe(tag);
    room.forget();
    if (job && !job.metadata.deletionTimestamp)
      await removeOnly(`${paths.jobs}/${job.metadata.name}`, job.metadata.uid, { propagationPolicy: 'Foreground' });
    const isLong = job !== undefined && now() > (deadlineOf(job) ?? Number.POSITIVE_INFINITY) + FORCE_SECONDS;
    for (const { metadata } of pods) {
      const path = `${paths.pods}/${metadata.name}`;
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

  /** Returns the pod to run something in. */
  async function podOf(tag: Ref): Promise<string> {
    const { job, pods } = await observe(tag);
    const pod = job && runningPod(job, pods);
    if (!pod) throw new Error(`the pod of ${tag} does not run`);
    return pod.metadata.name;
  }

  /**
   * Moves both deadlines: first the watchdog's, then the Job's, which is the one that `inspect` reports. So the reported deadline
   * is in force, even if a call in between fails.
   */
  async function extend(tag: Ref, deadline: number): Promise<Extended> {
    const { job, pods } = await observe(tag);
    const pod = job && runningPod(job, pods);
    if (!pod || !job.status?.startTime) return { kind: 'refused', reason: 'the pod does not run' };
    const watchdog = await streams.begin(pod.metadata.name, [RUNNING_WATCHDOG, String(deadline)]);
    const limits = { streamBytesMax: OWN_OUTPUT_BYTES, milliseconds: MOVE_MILLISECONDS };
    const { exitCode } = await finish(watchdog, undefined, limits);
    // If it was killed, it may have moved the deadline before; any other error comes before that.
    if (exitCode >= 128) return { kind: 'unknown', reason: `the watchdog was killed (${exitCode})` };
    if (exitCode !== 0) return { kind: 'refused', reason: `the watchdog did not take the deadline (${exitCode})` };
    const before = deadlineOf(job) ?? 0;
    const pending = job.metadata.annotations?.[REARM_ANNOTATION];
    const isPending = pending !== undefined && Number(pending) >= now();
    const rearmAt = isPending ? pending : deadline > before ? String(before) : null;
    try {
      await api.patch(jobPath(tag), {
        metadata: {
          uid: job.metadata.uid,
          annotations: { [POD_ANNOTATION]: pod.metadata.uid, [REARM_ANNOTATION]: rearmAt },
        },
        spec: { activeDeadlineSeconds: Math.max(1, deadline - secondsOf(job.status.startTime)) },
      });
    } catch (error) {
      if (isNotFound(error) || isRefusal(error)) return { kind: 'refused', reason: textOf(error) };
      return { kind: 'unknown', reason: textOf(error) };
    }
    return { kind: 'done' };
  }

  /** Returns the specs of offers that the API admits now: quotas count, free places on nodes do not. */
  async function freeSpecs(): Promise<ReadonlySet<string>> {
    const specs = offersOf(settings, 'pod').map((it) => it.spec);
    const admits = async (spec: Spec) => {
      const order = { tag: 'purser-offers', quote: quoteOf(settings, spec), deadline: now() + spec.max_seconds };
      return tryPod(order).then(
        () => true,
        (error) => {
          if (error instanceof ApiError) return false;
          throw error;
        },
      );
    };
    const isFree = await Promise.all(specs.map(admits));
    return new Set(specs.filter((_, i) => isFree[i]).map((it) => JSON.stringify(it)));
  }

  return {
    name: 'kubernetes',
    absence: { lists: 2, apartSeconds: 10 },
    create,
    inspect,
    extend,
    destroy,
    listOwned,
    async find(tag) {
      const machine = await inspect(tag, { onlyLook: true });
      return machine ? [machine] : [];
    },
    guest,
    async quote(spec) {
      sizeOf(settings, spec);
      return quoteOf(settings, spec);
    },
    async offers(waitMilliseconds) {
      const free = await room.get(waitMilliseconds);
      return offersOf(settings, 'pod').map((it) => ({ ...it, available: free?.has(JSON.stringify(it.spec)) ?? false }));
    },
    doctor: { check: () => checkCluster(api, settings, paths, { tryPod, now }), trial: 'free' },
    close: () => api.close(),
  };

  function gpusOf({ spec }: Pod): number {
    const own = spec?.containers?.find((it) => it.name === CONTAINER); // A cluster may add others.
    return Number(own?.resources?.limits?.[settings.gpu_resource] ?? 0);
  }
}

const tagOfObject = ({ metadata }: Job | Pod) => metadata.annotations?.[TAG_ANNOTATION] ?? '';
const withName = <T extends { metadata: object }>(it: T, name: string) => ({
  ...it,
  metadata: { ...it.metadata, name },
});
const textOf = (error: unknown) => (error as Error).message;
const isConflict = (error: unknown) => error instanceof ApiError && error.status === 409;
/**
 * Returns whether the server understood the request and refused it, or turned it away unread (429). A 408 is for a client that gave
 * up waiting.
 */
const isRefusal = (error: unknown) =>
  error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 408;

/** Returns the refusal for an answer or an error that proves that nothing was made. */
function refuse(error: unknown): Created {
  const words = textOf(error);
  if (QUOTA.test(words)) return refused('The quota of the cluster is used up', words, 'capacity_unavailable');
  const isAnswer = error instanceof ApiError;
  return refused(isAnswer ? 'The cluster refused the machine' : 'The cluster cannot be asked for a machine', words);
}
