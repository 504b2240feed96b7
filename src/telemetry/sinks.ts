import type { Log } from '../base/log.ts';
import type { Metrics } from './metrics.ts';
import type { OperationSpans } from './spans/operation-spans.ts';

/**
 * The destinations of events: all go to the log, most to a metric, those of operations and leases to spans once there is a
 * collector.
 */
export type Sinks = { readonly log: Log; readonly metrics: Metrics; spans: OperationSpans | undefined };
