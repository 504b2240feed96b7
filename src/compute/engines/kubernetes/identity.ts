import type { KubernetesApi } from './api.ts';
import { ApiError } from './api-error.ts';

/**
 * Returns the identity of a cluster (`Backend.identity`): the uid of its namespace kube-system, which lives as long as the cluster.
 * Undefined where Purser may not read it.
 */
export async function clusterIdentity(api: KubernetesApi): Promise<string | undefined> {
  try {
    const { metadata } = await api.get<{ metadata?: { uid?: string } }>('/api/v1/namespaces/kube-system');
    return metadata?.uid && `kubernetes ${metadata.uid}`;
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) return undefined;
    throw error;
  }
}
