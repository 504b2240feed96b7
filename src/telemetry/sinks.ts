import type { Log } from '../log.ts';
import type { Metrics } from './metrics.ts';
import type { OperationSpans } from './spans/operation-spans.ts';

/** Where events go: all to the log, most to a metric, those of operations and leases to spans once there is a collector. */
export type Sinks = { readonly log: Log; readonly metrics: Metrics; spans: OperationSpans | undefined };
