import { hash } from 'node:crypto';
import type { Backend, SecretsOrder, Spec, SpecOne, SpecThree, SpecTwo } from '../../backend.ts';
import { egressVariables } from '../../kit/egress.ts';
import { chipOf, offerOf } from '../../kit/priced.ts';
import { trustVariables } from '../../kit/trust.ts';
import { COPIED_WATCHDOG, WROTE_BESIDE_DISK, watchdogFor, wroteBesideDisk } from '../../kit/watchdog.ts';
import type { KubernetesSettings } from './settings.ts';

/** The objects that Purser makes: a Job for each lease, and the network policies of its namespace. */

export const CONTAINER = 'lease';
/** Every pod and Job of a lease has this label, with the Job's name. */
export const LEASE_LABEL = 'purser.lease';
const NETWORK_LABEL = 'purser.network';
/** The annotation with the tag, which is longer than a label's value may be. */
export const TAG_ANNOTATION = 'purser.tag';
export const CREATED_ANNOTATION = 'purser.created';
/** The annotation of a pod with secrets: the certificate of the authority that it trusts. */
export const AUTHORITY_ANNOTATION = 'purser.authority';
/** The annotation that names the pod a tenant has been in. Another pod of the same Job is not their machine. */
export const POD_ANNOTATION = 'purser.pod';
/** The annotation with the time (Unix seconds) at which the Job controller looks at a deadline that was moved. */
export const REARM_ANNOTATION = 'purser.rearm';

/** Returns the name of a tag's Job. A Job's pods carry its name as a label, so it has at most 63 characters; a tag has more. */
export const jobName = (tag: string) => `purser-${hash('sha256', tag).slice(0, 20)}-${tag.slice(-26)}`;

const HOME = '/home/lease';
/** The watchdog's directory. Everything in a pod runs as one user, so a tenant may change what is there. */
const PRIVATE = '/run/purser';
export const WATCHDOG_PATH = `${PRIVATE}/${COPIED_WATCHDOG}`;
/** The directory of what a pod with secrets trusts. */
export const TRUST = '/run/purser-trust';
/** The grace period of a pod, longer than PID 1 takes to end. Never 0: that would remove a pod from the API and leave it running. */
const GRACE_SECONDS = 2;
/** The time for which a Job that has ended can still be inspected. */
const KEPT_SECONDS = 3600;
/** The kubelet's own deadline is later than any that is sold, since it cannot be moved back. */
const KUBELET_SLACK_SECONDS = 60;
const EXIT_NO_WATCHDOG = 78;

/**
 * Makes the watchdog the first process of a lease; it keeps the deadline while neither Purser nor the control plane can be reached
 * (kit/watchdog/watchdog.c). The arguments hold the program for the node's architecture, then its directory if it needs one.
 */
const BECOME_WATCHDOG = `case $(uname -m) in
  x86_64) program=$2 ;;
  aarch64) program=$3 ;;
  *) exit ${EXIT_NO_WATCHDOG} ;;
esac
umask 022
printf %s "$program" | base64 -d > ${WATCHDOG_PATH} && chmod 555 ${WATCHDOG_PATH} || exit ${EXIT_NO_WATCHDOG}
exec ${WATCHDOG_PATH} "$1" \${4+"$4"}`;

/** Describes why process 1 ended with this exit code; undefined if the code is inconclusive. */
export function meaningOf(exitCode: number): string | undefined {
  if (exitCode === 0) return "its deadline has passed by its node's clock";
  if (exitCode === 143) return 'somebody stopped it';
  if (wroteBesideDisk(exitCode)) return WROTE_BESIDE_DISK;
  if (exitCode === 137) return 'it was killed, by somebody or for lack of memory';
  if (exitCode === EXIT_NO_WATCHDOG)
    return `its watchdog cannot be started: the image needs sh, uname, base64 and chmod, ${PRIVATE} has to be writable, and the node's architecture one of amd64 and arm64`;
  return undefined;
}

/** Autoscalers leave a node alone whose pod has these annotations: leased machines are paid for. */
const STAYS = { 'cluster-autoscaler.kubernetes.io/safe-to-evict': 'false', 'karpenter.sh/do-not-disrupt': 'true' };

type PodSize = {
  cpus: number;
  memoryGib: number;
  diskGb: number;
  gpus: number;
  nodeSelector: Record<string, string>;
  runtimeClass: string | undefined;
  offer?: string;
};

/** Returns the resources that a spec asks of a node. Refuses with `offer_not_found`. */
export function sizeOf(settings: KubernetesSettings, spec: Spec): PodSize {
  const { runtime_class: common } = settings;
  if ('chips' in settings) {
    const it = chipOf(settings, (spec as SpecTwo).chip);
    return {
      ...shapeOf(it),
      diskGb: it.disk_gb,
      nodeSelector: it.node_selector,
      runtimeClass: it.runtime_class ?? common,
    };
  }
  if ('offers' in settings) {
    const { offer_id: id, disk_gb: diskGb } = spec as SpecThree;
    const it = offerOf(settings, id);
    return {
      ...shapeOf(it),
      diskGb,
      nodeSelector: it.node_selector,
      runtimeClass: it.runtime_class ?? common,
      offer: id,
    };
  }
  const one = spec as SpecOne;
  const nodeSelector = (one.gpu !== null && settings.gpu_nodes[one.gpu]) || {};
  return { ...shapeOf(one), diskGb: settings.limits.disk_gb, nodeSelector, runtimeClass: common };
}

const shapeOf = ({ cpus, memory_gib: memoryGib, gpus }: { cpus: number; memory_gib: number; gpus: number }) => ({
  cpus,
  memoryGib,
  gpus,
});

/** Returns the labels that select a lease's pod; its network policy selects by the second. */
const labelsOf = (settings: KubernetesSettings, tag: string) => ({
  [LEASE_LABEL]: jobName(tag),
  [NETWORK_LABEL]: settings.network,
});

const mib = (gib: number) => `${Math.ceil(gib * 1024)}Mi`;

export type PodOrder = Pick<Parameters<Backend['create']>[0], 'tag' | 'quote' | 'deadline' | 'secrets'>;

/** Returns the volumes of a pod, each with the path at which it is mounted. */
function volumesOf(
  { shm_gib: shm }: KubernetesSettings,
  runtimeClass: string | undefined,
  secrets: SecretsOrder | undefined,
) {
  const memory = (sizeLimit: string) => ({ medium: 'Memory', sizeLimit });
  return [
    { name: 'home', mountPath: HOME, emptyDir: {} },
    { name: 'tmp', mountPath: '/tmp', emptyDir: {} }, // An image may lack a /tmp that every user may write.
    // Not every kind of disk can be shared memory.
    { name: 'private', mountPath: PRIVATE, emptyDir: runtimeClass === undefined ? {} : memory('1Mi') },
    ...(shm === undefined ? [] : [{ name: 'shm', mountPath: '/dev/shm', emptyDir: memory(mib(shm)) }]),
    ...(secrets ? [{ name: 'trust', mountPath: TRUST, emptyDir: {} }] : []),
  ];
}

export function describePod(settings: KubernetesSettings, { tag, quote, deadline, secrets }: PodOrder, now: number) {
  // The time that the lease has until it is ready: another backend of its slot may need longer than this one.
  const provisionSeconds = Math.max(0, deadline - now - quote.spec.max_seconds);
  const { cpus, memoryGib, diskGb, gpus, nodeSelector, runtimeClass, offer } = sizeOf(settings, quote.spec);
  const resources = {
    cpu: `${Math.round(cpus * 1000)}m`,
    memory: mib(memoryGib),
    'ephemeral-storage': `${diskGb}Gi`,
    ...(gpus ? { [settings.gpu_resource]: String(gpus) } : {}),
  };
  const program = (architecture: string) => watchdogFor(architecture).toString('base64');
  const wayOut = egressVariables(settings, offer);
  const volumes = volumesOf(settings, runtimeClass, secrets);
  const trusted = secrets && { [AUTHORITY_ANNOTATION]: secrets.authority };
  return {
    metadata: { labels: labelsOf(settings, tag), annotations: { [TAG_ANNOTATION]: tag, ...trusted, ...STAYS } },
    spec: {
      restartPolicy: 'Never',
      terminationGracePeriodSeconds: GRACE_SECONDS,
      activeDeadlineSeconds: provisionSeconds + quote.maxSeconds + KUBELET_SLACK_SECONDS,
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      // Purser's proxy looks names up. The cluster's name service would pass them on.
      ...(Object.keys(wayOut).length ? { dnsPolicy: 'None', dnsConfig: { nameservers: ['127.0.0.1'] } } : {}),
      hostname: CONTAINER,
      nodeSelector: { ...settings.node_selector, ...nodeSelector },
      tolerations: settings.tolerations.map((it) => ({
        operator: it.value === undefined ? 'Exists' : 'Equal',
        ...it,
      })),
      imagePullSecrets: settings.image_pull_secrets.map((name) => ({ name })),
      ...(runtimeClass === undefined ? {} : { runtimeClassName: runtimeClass }),
      securityContext: {
        runAsNonRoot: true,
        runAsUser: settings.user,
        runAsGroup: settings.group,
        fsGroup: settings.group,
        seccompProfile: { type: 'RuntimeDefault' },
      },
      containers: [
        {
          name: CONTAINER,
          image: settings.image,
          imagePullPolicy: { never: 'Never', missing: 'IfNotPresent', always: 'Always' }[settings.pull],
          command: ['/bin/sh', '-c', BECOME_WATCHDOG, 'purser'],
          args: [
            String(deadline),
            program('amd64'),
            program('arm64'),
            ...(runtimeClass === undefined ? [] : [PRIVATE]),
          ],
          workingDir: HOME,
          env: Object.entries({
            HOME,
            // A default runtime would give every GPU of the node to an image that asks for all.
            ...(gpus ? {} : { NVIDIA_VISIBLE_DEVICES: 'void' }),
            ...wayOut,
            ...trustVariables(secrets, TRUST),
          }).map(([name, value]) => ({ name, value })),
          resources: { requests: resources, limits: resources },
          securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } },
          volumeMounts: volumes.map(({ name, mountPath }) => ({ name, mountPath })),
        },
      ],
      volumes: volumes.map(({ name, emptyDir }) => ({ name, emptyDir })),
    },
  };
}

/** Describes a Job of one pod that is never made again. Its own deadline counts from the moment at which its controller sees it. */
export function describeJob(settings: KubernetesSettings, order: PodOrder, now: number) {
  const { tag, deadline } = order;
  return {
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: {
      name: jobName(tag),
      labels: labelsOf(settings, tag),
      annotations: { [TAG_ANNOTATION]: tag, [CREATED_ANNOTATION]: String(now) },
    },
    spec: {
      backoffLimit: 0,
      activeDeadlineSeconds: Math.max(1, deadline - now),
      ttlSecondsAfterFinished: KEPT_SECONDS,
      template: describePod(settings, order, now),
    },
  };
}

/** The addresses that a lease with internet access cannot reach: private, local and shared addresses (RFC 6890). */
const NOT_PUBLIC_V4 = [
  ...['0.0.0.0/8', '10.0.0.0/8', '100.64.0.0/10', '127.0.0.0/8', '169.254.0.0/16', '172.16.0.0/12'],
  ...['192.0.0.0/24', '192.168.0.0/16', '198.18.0.0/15', '224.0.0.0/4', '240.0.0.0/4'],
];
/** Global unicast addresses, except those that embed other addresses (RFC 6052, 3056). */
const PUBLIC_V6 = '2000::/3';
const NOT_PUBLIC_V6 = ['2002::/16'];

/**
 * Describes the policies of the namespace: no traffic from or to leases; those with `network: internet` reach public addresses and
 * the cluster's name service. They select leases only.
 */
export function describePolicies(): { metadata: { name: string }; spec: object }[] {
  const policy = (name: string, spec: object) => ({
    apiVersion: 'networking.k8s.io/v1',
    kind: 'NetworkPolicy',
    metadata: { name },
    spec,
  });
  const names = {
    namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'kube-system' } },
    podSelector: { matchLabels: { 'k8s-app': 'kube-dns' } },
  };
  return [
    policy('purser-none', {
      podSelector: { matchExpressions: [{ key: LEASE_LABEL, operator: 'Exists' }] },
      policyTypes: ['Ingress', 'Egress'],
    }),
    policy('purser-internet', {
      podSelector: {
        matchLabels: { [NETWORK_LABEL]: 'internet' },
        matchExpressions: [{ key: LEASE_LABEL, operator: 'Exists' }],
      },
      policyTypes: ['Egress'],
      egress: [
        {
          to: [
            { ipBlock: { cidr: '0.0.0.0/0', except: NOT_PUBLIC_V4 } },
            { ipBlock: { cidr: PUBLIC_V6, except: NOT_PUBLIC_V6 } },
          ],
        },
        { to: [names], ports: ['UDP', 'TCP'].map((protocol) => ({ protocol, port: 53 })) },
      ],
    }),
  ];
}
