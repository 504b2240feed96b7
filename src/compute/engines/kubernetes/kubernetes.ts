import type { Backend, Machine, Owned, Ref, Spec } from '../../backend.ts';
import { egressLists } from '../../kit/egress.ts';
import { offersOf, quoteOf } from '../../kit/priced.ts';
import { createGuest } from '../../machine/guest.ts';
import { openKubernetesApi } from './api.ts';
import { checkCluster, findOpen } from './check.ts';
import { createJobMaker } from './create.ts';
import { type Cluster, readCluster } from './credentials.ts';
import { createDeadlines } from './deadline.ts';
import {
  AUTHORITY_ANNOTATION,
  CREATED_ANNOTATION,
  LEASE_LABEL,
  sizeOf,
  TAG_ANNOTATION,
  WATCHDOG_PATH,
} from './describe.ts';
import { clusterIdentity } from './identity.ts';
import { createJobs } from './jobs.ts';
import { type JobEvent, type KubernetesJob, type Pod, pathsOf, secondsOf } from './objects.ts';
import { beginEgress, beginIn } from './program.ts';
import type { KubernetesSettings } from './settings.ts';
import { machineOf, ownContainer, runningPod } from './state.ts';
import { createStreams } from './stream.ts';
import { putTrust } from './trust.ts';

type KubernetesSurroundings = {
  /** Unix seconds. */
  now: () => number;
  cluster?: () => Promise<Cluster>;
};

/**
 * The Jobs of a Kubernetes cluster, one per lease, with one pod each. The tag is the reference and makes the Job's name: the API
 * refuses a second create, and a lease is found without a list.
 */
export function openKubernetesBackend(
  settings: KubernetesSettings,
  { now, cluster = () => readCluster(settings, now) }: KubernetesSurroundings,
): Backend {
  const api = openKubernetesApi(cluster);
  const paths = pathsOf(settings.namespace);
  const streams = createStreams(api, paths.pods);
  const jobs = createJobs(api, paths, now);
  const maker = createJobMaker(api, settings, { paths, jobs, now });
  const deadlines = createDeadlines(api, { jobs, streams, now });
  const egress = egressLists(settings);
  const reachOf = (spec: Spec) => egress(sizeOf(settings, spec).offer);
  const guest = createGuest(async (tag, order) => beginIn(streams, (await jobs.podOf(tag)).pod.metadata.name, order), {
    relay: WATCHDOG_PATH,
    gpus: (_, spec) => sizeOf(settings, spec).gpus,
    egress: {
      listOf: reachOf,
      async begin(tag) {
        const { pod, isUsed } = await jobs.podOf(tag);
        const authority = pod.metadata.annotations?.[AUTHORITY_ANNOTATION];
        if (authority !== undefined && !isUsed) await putTrust(guest, tag, authority);
        return { ...(await beginEgress(streams, pod)), hasSecrets: authority !== undefined };
      },
    },
    pause: 'the processors of a running pod cannot be taken away',
    snapshots: 'Kubernetes does not keep the disk of a pod',
    async proofOf(tag) {
      const { job, pods } = await jobs.observe(tag);
      const pod = job && runningPod(job, pods);
      return pod ? { gpus: gpusOf(pod) } : 'the pod is gone';
    },
  });

  async function inspect(tag: Ref, { onlyLook = false } = {}): Promise<Machine | undefined> {
    const { job, pods } = await jobs.observe(tag);
    const machine = machineOf(tag, job, pods);
    if (job && machine?.state === 'running' && !onlyLook) await deadlines.rearm(job);
    if (job && machine?.state === 'provisioning' && !pods.length) {
      const words = await whyNoPod(job);
      if (words) return { ...machine, note: words };
    }
    return machine;
  }

  /** Returns the controller's reason why it cannot make a pod. Purser may lack the right to read it, which is optional. */
  async function whyNoPod({ metadata }: KubernetesJob): Promise<string | undefined> {
    const query = { fieldSelector: `involvedObject.uid=${metadata.uid}` };
    const events = await api.list<JobEvent>(paths.events, query).catch(() => []);
    return events.findLast((it) => it.reason === 'FailedCreate')?.message?.slice(0, 500);
  }

  async function listOwned(prefix: string): Promise<Owned[]> {
    const query = { labelSelector: LEASE_LABEL };
    const pods = Map.groupBy(await api.list<Pod>(paths.pods, query), tagOfObject);
    const jobs = new Map((await api.list<KubernetesJob>(paths.jobs, query)).map((it) => [tagOfObject(it), it]));
    return [...new Set([...jobs.keys(), ...pods.keys()])]
      .filter((tag) => tag.startsWith(prefix))
      .map((tag) => {
        const job = jobs.get(tag);
        const its = pods.get(tag) ?? [];
        const { metadata } = (job ?? its[0]) as KubernetesJob | Pod;
        const created = metadata.annotations?.[CREATED_ANNOTATION];
        const createdAt = created === undefined ? secondsOf(metadata.creationTimestamp) : Number(created);
        return { ...(machineOf(tag, job, its) as Machine), tag, createdAt };
      });
  }

  return {
    name: 'kubernetes',
    identity: () => clusterIdentity(api, settings.namespace),
    absence: { lists: 2, apartSeconds: 10 },
    create: maker.create,
    inspect,
    extend: deadlines.extend,
    destroy(tag) {
      maker.free.forget();
      return jobs.destroy(tag);
    },
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
      const free = await maker.free.get(waitMilliseconds);
      return offersOf(settings, 'pod').map((it) => ({
        ...it,
        runtime: sizeOf(settings, it.spec).runtimeClass,
        available: free?.has(JSON.stringify(it.spec)) ?? false,
      }));
    },
    doctor: {
      check: () => checkCluster(api, settings, paths, { tryPod: maker.tryPod, now }),
      trial: 'free',
      unlimited: async (tag, { spec }) => (reachOf(spec).length ? findOpen(guest, tag) : undefined),
    },
    close: () => api.close(),
  };

  function gpusOf(pod: Pod): number {
    return Number(ownContainer(pod)?.resources?.limits?.[settings.gpu_resource] ?? 0);
  }
}

const tagOfObject = ({ metadata }: KubernetesJob | Pod) => metadata.annotations?.[TAG_ANNOTATION] ?? '';
