import type { Backend, CheckFinding, Guest, Offer, Ref } from '../../backend.ts';
import { finding, warning } from '../../finding.ts';
import { describeReach, haveWayOut } from '../../kit/egress.ts';
import { offersOf, quoteOf } from '../../kit/priced.ts';
import type { KubernetesApi } from './api.ts';
import { lacksRuntimeClass } from './api-error.ts';
import { describePolicies, sizeOf } from './describe.ts';
import type { AccessReview, Paths } from './objects.ts';
import type { KubernetesSettings } from './settings.ts';

type Right = { group: string; resource: string; subresource?: string; verb: string };
const rightsOn = (group: string, resource: string, verbs: string[], subresource?: string): Right[] =>
  verbs.map((verb) => ({ group, resource, verb, ...(subresource ? { subresource } : {}) }));

/** The rights that Purser needs, in its namespace alone: the Role in docs/backends.md. */
const RIGHTS: readonly Right[] = [
  ...rightsOn('batch', 'jobs', ['create', 'get', 'list', 'patch', 'delete']),
  ...rightsOn('', 'pods', ['create', 'get', 'list', 'delete']),
  ...rightsOn('', 'pods', ['create', 'get'], 'exec'),
  ...rightsOn('', 'events', ['list']),
  ...rightsOn('networking.k8s.io', 'networkpolicies', ['create', 'get']),
];
/** The rights that it does not need: with these a leaked credential is worth more than the leases. */
const TOO_MUCH: readonly Right[] = [
  ...rightsOn('', 'secrets', ['get', 'list']),
  ...rightsOn('rbac.authorization.k8s.io', 'rolebindings', ['create']),
];

const nameOf = ({ resource, subresource, verb }: Right) =>
  `${verb} ${[resource, subresource].filter(Boolean).join('/')}`;

/** Checks what a lease depends on. Never throws. */
export async function checkCluster(
  api: KubernetesApi,
  settings: KubernetesSettings,
  paths: Paths,
  { tryPod, now }: { tryPod: (order: Parameters<Backend['create']>[0]) => Promise<unknown>; now: () => number },
): Promise<CheckFinding[]> {
  const { namespace } = settings;
  const server = await finding('cluster', async () => {
    const { gitVersion } = await api.get<{ gitVersion: string }>('/version');
    return `Kubernetes ${gitVersion} on ${api.server}`;
  });
  if (!server.ok) return [server];

  const may = async ({ group, resource, subresource, verb }: Right): Promise<boolean> => {
    const attributes = { namespace, group, resource, verb, ...(subresource ? { subresource } : {}) };
    const review = await api.create<AccessReview>('/apis/authorization.k8s.io/v1/selfsubjectaccessreviews', {
      apiVersion: 'authorization.k8s.io/v1',
      kind: 'SelfSubjectAccessReview',
      spec: { resourceAttributes: attributes },
    });
    return review.status?.allowed === true;
  };
  const filter = async (rights: readonly Right[], wanted: boolean) => {
    const allowed = await Promise.all(rights.map(may));
    return rights.filter((_, i) => allowed[i] === wanted).map(nameOf);
  };

  const tryOffer = ({ spec }: Pick<Offer, 'spec'>) =>
    tryPod({ tag: 'purser-check', quote: quoteOf(settings, spec), deadline: now() + spec.max_seconds });
  const offers = offersOf(settings, 'pod');

  return [
    server,
    await finding('rights', async () => {
      const missing = await filter(RIGHTS, false);
      if (missing.length)
        throw new Error(
          `Purser may not ${missing.join(', ')} in the namespace ${namespace}. Give it the Role of docs/backends.md`,
        );
      const excess = await filter(TOO_MUCH, true);
      const detail = `all that leases need in the namespace ${namespace}`;
      return excess.length ? warning(`${detail}, and more: ${excess.join(', ')}`) : detail;
    }),
    await finding('network', async () => {
      const names = describePolicies().map((it) => it.metadata.name);
      const found = await Promise.all(names.map((name) => api.find(`${paths.policies}/${name}`)));
      const missing = names.filter((_, i) => !found[i]);
      const what = missing.length
        ? `${missing.join(' and ')} will be made with the first lease`
        : `the network policies ${names.join(' and ')} are there`;
      if (haveWayOut(settings))
        return warning(
          `${what}. Leases have no network: ${describeReach(settings)}. Only a network plugin that enforces the policies keeps them to that; the trial tries it if the image has bash or nc`,
        );
      return warning(`${what}. Whether the network plugin enforces them cannot be seen: flannel, for one, does not`);
    }),
    await finding('pod', async () => {
      await tryOffer(offers[0] as Offer);
      return 'the API admits the pod of a lease (tried without making it)';
    }),
    ...(await Promise.all(
      [...Map.groupBy(offers, ({ spec }) => sizeOf(settings, spec).runtimeClass)].map(([runtimeClass, [offer]]) =>
        checkRuntimeClass(runtimeClass, () => tryOffer(offer as Offer)),
      ),
    )),
  ];
}

/** Checks the runtime of some offers; `tryOffer` has the API validate a pod of one of them. */
function checkRuntimeClass(runtimeClass: string | undefined, tryOffer: () => Promise<unknown>): Promise<CheckFinding> {
  if (runtimeClass === undefined)
    return finding('kernel', () =>
      warning('leases share the kernel of their node: name a runtime_class where gVisor or Kata is installed'),
    );
  return finding(`runtime_class ${runtimeClass}`, async () => {
    try {
      await tryOffer();
      return 'the API admits the pod of a lease under it';
    } catch (error) {
      const { message } = error as Error;
      if (!lacksRuntimeClass(error)) throw error;
      throw new Error(`the cluster has no such RuntimeClass. Make it, or correct runtime_class (${message})`);
    }
  });
}

const TRY_SECONDS = 10;
/** Prints the address of the API server if it can be reached. Bash connects by itself; where nc does, the server has to answer. */
const TRY_API_SERVER = `host=$KUBERNETES_SERVICE_HOST port=$KUBERNETES_SERVICE_PORT
if command -v bash; then bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$host" "$port"
else printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 "$host" "$port" | grep -q .
fi >/dev/null 2>&1 && echo "$host port $port"`;

/** Returns what a pod with a way out reaches past the proxy: the API server, which the policies close to it. Undefined if nothing. */
export async function findOpen(guest: Guest, ref: Ref): Promise<string | undefined> {
  const order = { command: TRY_API_SERVER, timeoutSeconds: TRY_SECONDS, streamBytesMax: 1000 };
  const reached = (await guest.exec(ref, order)).stdout.toString().trim();
  if (!reached) return undefined;
  return `its pod reaches the API server (${reached}) past the proxy: the network plugin does not enforce NetworkPolicy, or not towards its own node. Leases reach more than egress names, and each other. Use a plugin that enforces it, such as Calico or Cilium`;
}
