import type { OpenTelemetrySettings } from '../../config/opentelemetry.ts';
import { VERSION } from '../../files/version.ts';
import { deadline } from '../../net/deadline.ts';
import type { Collector, Exported } from './collector.ts';
import { exportRequest, type Span } from './otlp.ts';

/** The most spans that wait for the collector; beyond it, new ones are dropped. */
export const WAITING_COUNT_MAX = 2048;
/** Spans in one request. */
const BATCH_COUNT_MAX = 256;
/** Milliseconds for which a span waits for others, to be sent with them. */
const COLLECT_MILLISECONDS = 1000;
/** Milliseconds until a failed request is sent again; they double from the first to the last. */
const AGAIN_MILLISECONDS = { min: 1000, max: 30_000 };
/** The time for which waiting spans are sent at a stop. */
const LAST_MILLISECONDS = 2000;

/** Receives what became of spans. */
type ExporterEvents = {
  failed(where: string, error: unknown): void;
  spansSent(count: number): void;
  spansDropped(reason: DropReason, count: number): void;
  collectorFailing(reason: string): void;
  collectorBack(): void;
};
/** `full`: too many waited. `refused`: the collector rejected them. `stopped`: Purser stopped before they were sent. */
export const DROP_REASONS = ['full', 'refused', 'stopped'] as const;
export type DropReason = (typeof DROP_REASONS)[number];

export type Exporter = {
  /** Queues a span. Returns at once; a span too many is dropped and counted. */
  add(span: Span): void;
  waitingCount(): number;
  /** Sends the waiting spans, for at most two seconds and only to a collector that works; drops the rest. */
  stop(): Promise<void>;
};

/**
 * Creates the exporter, which sends spans to the collector in batches, one request at a time, from a buffer of 2048. It never
 * blocks its callers.
 */
export function createExporter(
  settings: OpenTelemetrySettings,
  installationId: string,
  events: ExporterEvents,
): Exporter {
  const resource = {
    'service.name': settings.service_name,
    'service.version': VERSION,
    'service.instance.id': installationId,
  };
  const waiting: Span[] = [];
  let collector: Collector | undefined;
  let sending: Promise<void> | undefined;
  let timer: NodeJS.Timeout | undefined;
  const health = createHealth(events);
  let isStopped = false;

  function later(milliseconds: number): void {
    if (isStopped) return;
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = undefined;
      flush();
    }, milliseconds);
    timer.unref();
  }

  function flush(): void {
    sending ??= sendAll()
      .catch(dropBatch)
      .finally(() => {
        sending = undefined;
        if (waiting.length && !timer) later(COLLECT_MILLISECONDS); // These came after all others had just been sent.
      });
  }

  /** Drops a batch that cannot even be written as JSON: it would otherwise be retried for ever. */
  function dropBatch(error: unknown): void {
    events.failed('spans', error);
    events.spansDropped('refused', waiting.splice(0, BATCH_COUNT_MAX).length);
  }

  async function sendAll(): Promise<void> {
    // Loaded only when there is something to send: commands and idle starts stay quick.
    collector ??= (await import('./collector.ts')).openCollector(settings);
    while (waiting.length) {
      const batch = waiting.slice(0, BATCH_COUNT_MAX);
      const sent = await collector.send(exportRequest(batch, resource, VERSION));
      if (sent.kind === 'failed') {
        return later(health.failed(sent, isStopped));
      }
      waiting.splice(0, batch.length);
      health.answered(sent, batch.length);
    }
  }

  return {
    add(span) {
      if (isStopped) return events.spansDropped('stopped', 1);
      if (waiting.length >= WAITING_COUNT_MAX) return events.spansDropped('full', 1);
      waiting.push(span);
      if (sending || (timer && (health.isFailing() || waiting.length !== BATCH_COUNT_MAX))) return;
      later(waiting.length >= BATCH_COUNT_MAX ? 0 : COLLECT_MILLISECONDS);
    },
    waitingCount: () => waiting.length,
    async stop() {
      isStopped = true;
      clearTimeout(timer);
      if (waiting.length && !health.isFailing()) {
        flush();
        if (sending) await deadline(sending, LAST_MILLISECONDS, () => {});
      }
      await collector?.close();
      await sending;
      if (waiting.length) events.spansDropped('stopped', waiting.length);
    },
  };
}

/** Counts what the collector does with spans, and reports when it begins to fail and when it is back. */
function createHealth(events: ExporterEvents) {
  const { min, max } = AGAIN_MILLISECONDS;
  let failuresInARow = 0;
  return {
    isFailing: () => failuresInARow > 0,
    /** Returns the milliseconds after which the request is sent again. */
    failed({ reason, retryAfterSeconds = 0 }: Exported & { kind: 'failed' }, isStopped: boolean): number {
      if (failuresInARow++ === 0 && !isStopped) events.collectorFailing(reason);
      return Math.min(max, Math.max(retryAfterSeconds * 1000, min * 2 ** (failuresInARow - 1)));
    },
    answered(sent: Exclude<Exported, { kind: 'failed' }>, count: number): void {
      if (sent.kind === 'refused') {
        events.spansDropped('refused', count);
        if (failuresInARow++ === 0) events.collectorFailing(sent.reason);
        return;
      }
      const rejected = Math.min(sent.rejectedCount, count);
      if (rejected) events.spansDropped('refused', rejected);
      events.spansSent(count - rejected);
      if (failuresInARow) events.collectorBack();
      failuresInARow = 0;
    },
  };
}
