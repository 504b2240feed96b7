import type { Created, Spec } from '../../backend.ts';
import { refused } from '../../kit/created.ts';
import { offersOf, quoteOf } from '../../kit/priced.ts';
import { createRecent } from '../../kit/recent.ts';
import type { KubernetesApi } from './api.ts';
import { ApiError, ApiUnreachable, isConflict, isRefusal, lacksRuntimeClass } from './api-error.ts';
import { describeJob, describePod, describePolicies, jobName, type PodOrder } from './describe.ts';
import type { KubernetesJobs } from './jobs.ts';
import type { Paths } from './objects.ts';
import type { KubernetesSettings } from './settings.ts';

/** Every quota reports itself with these words (k8s.io/apiserver, resourcequota). */
const QUOTA = /exceeded quota|is forbidden: .*quota/i;

/** Creates the calls that make Jobs, and those that find out whether one can be made. */
export function createJobMaker(
  api: KubernetesApi,
  settings: KubernetesSettings,
  { paths, jobs, now }: { paths: Paths; jobs: KubernetesJobs; now: () => number },
) {
  /** Has the API validate the pod without making it: a Job is admitted whatever its pods lack. Throws the API's error. */
  const tryPod = (order: PodOrder) =>
    api.create(`${paths.pods}?dryRun=All`, {
      apiVersion: 'v1',
      kind: 'Pod',
      ...withName(describePod(settings, order, now()), jobName(order.tag)),
    });

  async function create(order: PodOrder): Promise<Created> {
    try {
      await ensurePolicies(api, paths);
      await tryPod(order);
    } catch (error) {
      return refuseOrFind(order.tag, error); // This attempt has not requested anything yet.
    }
    const created = await make(order);
    free.forget();
    return created;
  }

  async function make(order: PodOrder): Promise<Created> {
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
      if (await jobs.find(tag)) return { kind: 'created', ref: tag };
    } catch (fault) {
      if (isConflict(error)) return { kind: 'unknown', reason: textOf(fault) };
    }
    return refuse(error);
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

  const free = createRecent(freeSpecs);
  return { create, tryPod, free };
}

const withName = <T extends { metadata: object }>(it: T, name: string) => ({
  ...it,
  metadata: { ...it.metadata, name },
});
const textOf = (error: unknown) => (error as Error).message;

/** Returns the refusal for an answer or an error that proves that nothing was made. */
function refuse(error: unknown): Created {
  const words = textOf(error);
  if (QUOTA.test(words)) return refused('The quota of the cluster is used up', words, 'capacity_unavailable');
  if (lacksRuntimeClass(error)) return refused('The cluster lacks the RuntimeClass of this machine', words);
  const isAnswer = error instanceof ApiError;
  return refused(isAnswer ? 'The cluster refused the machine' : 'The cluster cannot be asked for a machine', words);
}

/** Makes sure that the policies exist before any lease does. They may have been removed. */
async function ensurePolicies(api: KubernetesApi, paths: Paths): Promise<void> {
  await Promise.all(
    describePolicies().map(async (policy) => {
      if (await api.find(`${paths.policies}/${policy.metadata.name}`)) return;
      await api.create(paths.policies, policy).catch((error) => {
        if (!isConflict(error)) throw error;
      });
    }),
  );
}
