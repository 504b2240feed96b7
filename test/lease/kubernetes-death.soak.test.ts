import type { TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import type { ApiObject } from '../compute/engines/kubernetes.ts';
import { NAMESPACE, settingsOn, sharedKubernetes } from '../compute/engines/kubernetes-subject.ts';
import { dieOnEngine } from './death-shared.ts';
import { openWith } from './leases.ts';

/** A purser whose leases are Jobs of a real cluster. */
async function openLeaseServer(t: TestContext) {
  const shared = await sharedKubernetes(t);
  if (!shared) return undefined;
  const { cluster, kubeconfig } = shared;
  const { prices, limits, ...common } = settingsOn(cluster, kubeconfig);
  const offers = [{ id: 'small', cpus: 0.25, memory_gib: 0.25, max_disk_gb: 1, price_hourly_usd: '0.36' }];
  const compute = { provider_one: { ...common, prices, limits }, provider_three: { ...common, offers } };
  const purser = await openWith(t, 'unix:///nowhere/docker.sock', cluster.image, {
    settings: { compute, close_wait_seconds: 1 },
  });
  return Object.assign(purser, {
    /** The tags of which the cluster has anything. */
    async machines() {
      const args = ['get', 'jobs,pods', '-n', NAMESPACE, '-l', 'purser.lease', '-o', 'json'];
      const items: ApiObject[] = JSON.parse(await cluster.kubectl(args)).items;
      const tags = new Set(items.map((it) => it.metadata.annotations['purser.tag'] as string));
      return [...tags].filter((it) => it.startsWith(tagPrefix(purser.app.installationId)));
    },
  });
}

dieOnEngine('kubernetes', { open: openLeaseServer, isSlow: true });
