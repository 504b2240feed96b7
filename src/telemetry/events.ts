import type { Log } from '../base/log.ts';
import { accountEvents } from './events/accounts.ts';
import { checkoutEvents } from './events/checkouts.ts';
import { collectorEvents } from './events/collector.ts';
import { diskEvents } from './events/disk.ts';
import { faultEvents } from './events/faults.ts';
import { leaseEvents } from './events/leases.ts';
import { operationEvents } from './events/operations.ts';
import { receiverEvents } from './events/receivers.ts';
import { serverEvents } from './events/server.ts';
import { upstreamEvents } from './events/upstreams.ts';
import { walletEvents } from './events/wallets.ts';
import { createMetrics } from './metrics.ts';
import type { Sinks } from './sinks.ts';
import type { OperationSpans } from './spans/operation-spans.ts';

/** The events of a server: one function per business event, which writes its log line and its counter together. */
export type Events = ReturnType<typeof createEvents>;

/** Creates the events of a server. Ids go into the log, never into labels. */
export function createEvents(log: Log) {
  const { registry, gauge, gauges, metrics } = createMetrics();
  const sinks: Sinks = { log, metrics, spans: undefined };
  return {
    registry,
    gauge,
    gauges,
    /** Starts to make a span of every operation and every lease as well. */
    trace(to: OperationSpans) {
      sinks.spans = to;
    },
    ...walletEvents(sinks),
    ...accountEvents(sinks),
    ...checkoutEvents(sinks),
    ...operationEvents(sinks),
    ...upstreamEvents(sinks),
    ...leaseEvents(sinks),
    ...receiverEvents(sinks),
    ...collectorEvents(sinks),
    ...diskEvents(sinks),
    ...serverEvents(sinks),
    ...faultEvents(sinks),
  };
}
