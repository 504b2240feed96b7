import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, type TestContext } from 'node:test';
import * as v from 'valibot';
import { openKubernetesBackend } from '../../../src/compute/engines/kubernetes/kubernetes.ts';
import { type KubernetesSettings, slots } from '../../../src/compute/engines/kubernetes/settings.ts';
import type { Subject } from '../conformance.ts';
import { type KubernetesCluster, openKubernetes } from './kubernetes.ts';

export const NAMESPACE = 'purser-leases';
const DOCS = new URL('../../../docs/backends.md', import.meta.url);

/** Gives the user `purser` the rights that the page of backends prints, and no others. Returns a kubeconfig of that user. */
export async function allowPurser(cluster: KubernetesCluster): Promise<string> {
  const [, manifest] = /```yaml\n(apiVersion: v1\nkind: Namespace[\s\S]*?)```/.exec(readFileSync(DOCS, 'utf8')) ?? [];
  await cluster.kubectl(['apply', '-f', '-'], manifest);
  const file = join(cluster.directory, 'purser-kubeconfig');
  const source = readFileSync(cluster.kubeconfig, 'utf8').replaceAll(cluster.token, cluster.userToken);
  writeFileSync(file, source, { mode: 0o600 });
  return file;
}

let shared: { cluster: KubernetesCluster; kubeconfig: string } | undefined;
after(() => shared?.cluster.stop());

/**
 * Returns the one cluster of this process, and a kubeconfig of the user `purser`, who has the rights of `allowPurser`. A test that
 * kills its node starts it again.
 */
export async function sharedKubernetes(t: TestContext): Promise<typeof shared> {
  if (!shared) {
    const cluster = await openKubernetes(t, { shared: true });
    if (!cluster) return undefined;
    shared = { cluster, kubeconfig: await allowPurser(cluster) };
  }
  return shared;
}

export const settingsOn = (cluster: KubernetesCluster, kubeconfig: string) => ({
  backend: 'kubernetes',
  kubeconfig,
  namespace: NAMESPACE,
  image: cluster.image,
  pull: 'never',
  provision_seconds: 60,
  prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
  limits: { cpus: 2, memory_gib: 1, disk_gb: 1, max_seconds: 3600 },
});

/** The backend on a real cluster, for the suite of all backends. `ahead` is by how much its clock is. */
export function kubernetesSubject(
  cluster: KubernetesCluster,
  kubeconfig: string,
  { ahead = 0, ...change }: { ahead?: number } & Record<string, unknown> = {},
): Subject {
  const settings = v.parse(slots.provider_one, { ...settingsOn(cluster, kubeconfig), ...change }) as KubernetesSettings;
  const now = () => Math.floor(Date.now() / 1000) + ahead;
  const spec = { gpu: null, gpus: 0, cpus: 0.25, memory_gib: 0.125, max_seconds: 600 };
  return {
    backend: openKubernetesBackend(settings, { now }),
    spec,
    unknownSpec: { ...spec, gpu: 'no-such-gpu' },
    room: 2,
    extends: true,
    deadlineMinSeconds: 5,
  };
}
