import * as v from 'valibot';
import type { Backend, Surroundings } from '../../backend.ts';
import { checkOneWayOut, egress, haveWayOut } from '../../kit/egress.ts';
import { above0, CLOUD_PROVISION_SECONDS, DISK_GB, hourly, limits, offersOf, sized, whole } from '../../kit/fields.ts';

/** Jobs of a Kubernetes cluster: the settings, the notes for the operator, and how the backend is opened. */

const GPU_RESOURCE = 'nvidia.com/gpu';

const label = (what: string) =>
  v.pipe(v.string(), v.maxLength(63), v.regex(/^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/, `must be the name of ${what}`));
/** A name that may have dots, as those of most objects. */
const objectName = (what: string) =>
  v.pipe(v.string(), v.maxLength(253), v.regex(/^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$/, `must be the name of ${what}`));
/** The key of a label, a taint or a resource, with a domain before it or without. */
const key = v.pipe(
  v.string(),
  v.maxLength(317),
  v.regex(/^([a-z0-9]([-.a-z0-9]*[a-z0-9])?\/)?[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?$/, 'is not a key of Kubernetes'),
);
const value = v.pipe(
  v.string(),
  v.maxLength(63),
  v.regex(/^([A-Za-z0-9]([-\w.]*[A-Za-z0-9])?)?$/, 'is not a value of a label'),
);
const file = v.pipe(v.string(), v.regex(/^\//, 'must be an absolute path'));
const nodeSelector = v.optional(v.record(key, value), {});
const runtimeClass = v.optional(objectName('a RuntimeClass'));

const shared = {
  backend: v.literal('kubernetes'),
  /** The file with the cluster's address and Purser's credentials there. Without it, the pod's own service account. */
  kubeconfig: v.optional(file),
  /** The context of that file; by default its current one. */
  context: v.optional(v.pipe(v.string(), v.minLength(1))),
  /** The namespace that the leases are made in. One namespace per installation, for leases alone. */
  namespace: label('a namespace'),
  image: v.pipe(v.string(), v.minLength(1), v.maxLength(1000)),
  /** The policy by which a node pulls the image. */
  pull: v.optional(v.picklist(['never', 'missing', 'always']), 'missing'),
  /** Secrets of the namespace that the image is pulled with. */
  image_pull_secrets: v.optional(v.array(objectName('a Secret')), []),
  /** The class of runtime that pods run under, if not the cluster's default. */
  runtime_class: runtimeClass,
  /** The user and group that everything in a lease runs as. */
  user: v.optional(whole(1, 2_147_483_647), 1000),
  group: v.optional(whole(1, 2_147_483_647), 1000),
  /** `internet`: leases reach public addresses and the cluster's name service; no connection reaches them. */
  network: v.optional(v.picklist(['none', 'internet']), 'none'),
  egress,
  /** The nodes that leases may run on. */
  node_selector: nodeSelector,
  tolerations: v.optional(
    v.array(
      v.strictObject({
        key,
        value: v.optional(value),
        effect: v.optional(v.picklist(['NoSchedule', 'PreferNoSchedule', 'NoExecute'])),
      }),
    ),
    [],
  ),
  /** The resource that counts a node's GPUs. */
  gpu_resource: v.optional(key, GPU_RESOURCE),
  /** The size of /dev/shm, if not the engine's own 64 MB. Its content counts as the lease's memory. */
  shm_gib: v.optional(above0),
  provision_seconds: v.optional(whole(1, 86_400), CLOUD_PROVISION_SECONDS),
};

const Sized = v.pipe(
  v.strictObject({
    ...shared,
    ...sized,
    /** The labels of the nodes that have each type of GPU. */
    gpu_nodes: v.optional(v.record(v.string(), v.record(key, value)), {}),
  }),
  v.forward(
    v.check(
      ({ prices, gpu_nodes }) => Object.keys(gpu_nodes).every((it) => Object.hasOwn(prices.gpu_hourly_usd, it)),
      'names a GPU type that has no price',
    ),
    ['gpu_nodes'],
  ),
  v.forward(
    v.check(({ prices, gpu_nodes }) => {
      const types = Object.keys(prices.gpu_hourly_usd);
      return types.length <= 1 || types.every((it) => Object.hasOwn(gpu_nodes, it));
    }, 'several GPU types are priced: say in gpu_nodes which nodes have which'),
    ['prices'],
  ),
  checkOneWayOut(),
);

/** The resources that a pod requests for each chip. */
const Chips = v.pipe(
  v.strictObject({
    ...shared,
    chips: v.pipe(
      v.record(
        v.pipe(v.string(), v.minLength(1), v.maxLength(100)),
        v.strictObject({
          gpus: v.optional(whole(0, 64), 1),
          /** The labels of the nodes that have it. */
          node_selector: nodeSelector,
          runtime_class: runtimeClass,
          cpus: above0,
          memory_gib: above0,
          disk_gb: v.optional(whole(1, 1_000_000), DISK_GB),
          price_hourly_usd: hourly,
        }),
      ),
      v.check((chips) => Object.keys(chips).length > 0, 'has no chip'),
    ),
    limits,
  }),
  checkOneWayOut(),
);

const Offers = v.pipe(
  v.strictObject({
    ...shared,
    limits,
    offers: offersOf({
      gpus: v.optional(whole(0, 64), 0),
      node_selector: nodeSelector,
      runtime_class: runtimeClass,
      /** The targets that its leases reach, if not those of the backend's settings. */
      egress,
    }),
  }),
  checkOneWayOut(),
);

export const slots = { provider_one: Sized, provider_two: Chips, provider_three: Offers };
export type KubernetesSettings = v.InferOutput<typeof Sized | typeof Chips | typeof Offers>;

/** Returns whether some leases run under the cluster's default runtime. */
function hasDefaultRuntime(it: KubernetesSettings): boolean {
  if (it.runtime_class !== undefined) return false;
  const items = 'chips' in it ? Object.values(it.chips) : 'offers' in it ? it.offers : [{ runtime_class: undefined }];
  return items.some((item) => item.runtime_class === undefined);
}

export function notes(it: KubernetesSettings): string[] {
  return [
    ...(it.network === 'none' ? [] : ['leases reach public addresses: their traffic is yours']),
    ...(hasDefaultRuntime(it)
      ? [
          'leases share the kernel of their node, which is no wall against a hostile tenant; name a runtime_class (gVisor, Kata) where one is installed',
        ]
      : []),
    haveWayOut(it)
      ? 'the cluster’s network plugin has to enforce NetworkPolicy, or egress is only advice; `purser doctor` tries that in a lease'
      : 'the cluster’s network plugin has to enforce NetworkPolicy, or leases reach each other; `purser doctor` cannot see whether it does',
  ];
}

export async function open(settings: KubernetesSettings, { now }: Surroundings): Promise<Backend> {
  const { openKubernetesBackend } = await import('./kubernetes.ts');
  return openKubernetesBackend(settings, { now });
}
