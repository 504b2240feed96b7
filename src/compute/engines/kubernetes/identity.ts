import type { KubernetesApi } from './api.ts';
import { ApiError } from './api-error.ts';

/**
 * Returns the identity of a cluster (`Backend.identity`): the uid of its namespace kube-system, which lives as long as the cluster,
 * and the namespace of the leases: none of another is found in it. Undefined where Purser may not read it, or a server has none.
 */
export async function clusterIdentity(api: KubernetesApi, namespace: string): Promise<string | undefined> {
  try {
    const { metadata } = await api.get<{ metadata?: { uid?: string } }>('/api/v1/namespaces/kube-system');
    return metadata?.uid && `kubernetes ${metadata.uid} ${namespace}`;
  } catch (error) {
    if (error instanceof ApiError && [403, 404].includes(error.status)) return undefined;
    throw error;
  }
}
