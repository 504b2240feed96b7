import type { Sinks } from '../sinks.ts';
import type { DropReason } from '../spans/exporter.ts';

/** The events of the collector of spans. */
export const collectorEvents = ({ log, metrics }: Sinks) => ({
  spansSent(count: number) {
    metrics.spansSent.inc(count);
  },
  spansDropped(reason: DropReason, count: number) {
    metrics.spansDropped.inc({ reason }, count);
  },
  collectorFailing(reason: string) {
    log.warn({ event: 'collector.failing', reason }, 'the collector of spans does not take them; nothing waits for it');
  },
  collectorBack() {
    log.info({ event: 'collector.back' }, 'the collector of spans takes them again');
  },
});
