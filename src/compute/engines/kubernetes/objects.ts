/** The parts of Kubernetes' objects that are used (its API reference, batch/v1 and v1). */

type Meta = {
  name: string;
  uid: string;
  resourceVersion: string;
  creationTimestamp: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
};
type Condition = { type: string; status: string; reason?: string; message?: string };
export type KubernetesJob = {
  metadata: Meta;
  spec: { activeDeadlineSeconds?: number };
  status?: { startTime?: string; conditions?: Condition[] };
};
type ContainerState = {
  waiting?: { reason?: string; message?: string };
  running?: object;
  terminated?: { exitCode: number; reason?: string; message?: string };
};
export type Pod = {
  metadata: Meta;
  spec?: {
    activeDeadlineSeconds?: number;
    containers?: { name: string; args?: string[]; resources?: { limits?: Record<string, string> } }[];
  };
  status?: {
    startTime?: string;
    phase?: string;
    reason?: string;
    message?: string;
    conditions?: Condition[];
    containerStatuses?: { name: string; state?: ContainerState; lastState?: ContainerState }[];
  };
};
export type JobEvent = { reason?: string; message?: string; lastTimestamp?: string; eventTime?: string };
export type AccessReview = { status?: { allowed?: boolean; reason?: string } };

export const secondsOf = (timestamp: string) => Math.floor(Date.parse(timestamp) / 1000);

/** Returns the paths of a namespace's objects. */
export const pathsOf = (namespace: string) => ({
  jobs: `/apis/batch/v1/namespaces/${namespace}/jobs`,
  pods: `/api/v1/namespaces/${namespace}/pods`,
  events: `/api/v1/namespaces/${namespace}/events`,
  policies: `/apis/networking.k8s.io/v1/namespaces/${namespace}/networkpolicies`,
});
export type Paths = ReturnType<typeof pathsOf>;
