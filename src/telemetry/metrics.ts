import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { FAULT_PLACES } from '../base/fault.ts';
import { lostLineCount } from '../base/log.ts';
import { VERSION } from '../files/version.ts';
import { hotCounter, hotHistogram } from './hot-metrics.ts';
import { DROP_REASONS } from './spans/exporter.ts';

/** Seconds: from the first byte of a quick model server to the longest answer. */
const SECONDS_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];
const TOKENS_BUCKETS = [16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576];

export type Metrics = ReturnType<typeof createMetrics>;

/** Creates the metrics of a server and their registry. They are counted in `events/`; ids never become labels. */
export function createMetrics() {
  const registry = new Registry();
  const counter = <L extends string>(name: string, help: string, labelNames: L[] = []) =>
    new Counter({ name: `purser_${name}`, help, labelNames, registers: [registry] });

  const histogram = <L extends string>(name: string, help: string, labelNames: L[], buckets = SECONDS_BUCKETS) =>
    new Histogram({ name: `purser_${name}`, help, labelNames, buckets, registers: [registry] });

  const everyCounter = (name: string, help: string, labelNames: string[]) =>
    hotCounter(registry, `purser_${name}`, help, labelNames);
  const everyHistogram = (name: string, help: string, labelNames: string[], buckets = SECONDS_BUCKETS) =>
    hotHistogram(registry, `purser_${name}`, help, labelNames, buckets);

  const operations = everyCounter('operations_total', 'Operations by kind and outcome.', ['kind', 'outcome']);
  const charged = everyCounter('charged_usd_total', 'Charged to wallets; the subject is a model or a slot.', [
    'kind',
    'subject',
  ]);
  const boundExceeded = counter(
    'bound_exceeded_total',
    'Answers whose usage was above the bound; charged by usage, at most the hold.',
  );
  const estimated = counter(
    'usage_missing_total',
    'Answers without readable usage, charged by an estimate: the model server reported none, or broke off.',
  );
  const boundsLearned = counter('bounds_learned_total', 'Prompt bounds raised after a count above them.', ['upstream']);
  const walletsOpened = counter('wallets_opened_total', 'Wallets opened.');
  const walletsClosed = counter('wallets_closed_total', 'Wallets closed, by reason.', ['reason']);
  const leases = counter('leases_total', 'Lease events.', ['slot', 'backend', 'event']);
  const fundsWaitSeconds = histogram(
    'funds_wait_seconds',
    'How long requests waited for money that others in flight held, by how that ended.',
    ['end'],
  );
  const keepsEnded = counter('keeps_ended_total', 'Leases that are no longer extended while busy, by reason.', [
    'reason',
  ]);
  const checkouts = counter('checkouts_total', 'Checkout events.', ['event']);
  const clawedBack = counter('clawed_back_cents_total', 'Taken back by refunds and disputes.');
  const refusals = counter('refusals_total', 'Requests refused, by code.', ['code']);
  const cutOff = counter('connections_cut_off_total', 'Connections closed by the server, by reason.', ['reason']);
  const delivered = counter('events_delivered_total', 'Events accepted by a receiver.', ['receiver']);
  const undelivered = counter('events_failed_total', 'Attempts to deliver an event that failed.', ['receiver']);
  const gaveUp = counter('events_given_up_total', 'Events given up after 3 days of attempts.', ['receiver']);
  const reloads = counter('reloads_total', 'Reloads of the settings, by outcome.', ['outcome']);
  const labelNames = ['version', 'node'];
  const build = { name: 'purser_build_info', help: 'The version.', labelNames, registers: [registry] };
  new Gauge(build).set({ version: VERSION, node: process.versions.node }, 1);
  const tokens = everyCounter('tokens_total', 'Tokens that were charged.', ['model', 'upstream', 'kind']);
  const upstreamCalls = everyCounter('upstream_calls_total', 'Calls of model servers, by what came of them.', [
    'model',
    'upstream',
    'code',
  ]);
  const requestTokens = everyHistogram(
    'request_tokens',
    'Tokens of one request that were charged.',
    ['model', 'upstream', 'kind'],
    TOKENS_BUCKETS,
  );
  const upstreamLabels = ['model', 'upstream', 'stream'];
  const upstreamSeconds = everyHistogram(
    'upstream_seconds',
    'From a call of a model server to the end of its answer.',
    upstreamLabels,
  );
  const firstByteSeconds = everyHistogram(
    'upstream_first_byte_seconds',
    'From a call of a model server to the first byte of its answer.',
    upstreamLabels,
  );
  const upstreamUp = new Gauge({
    name: 'purser_upstream_up',
    help: '0 while a model server is down; no value before the first call.',
    labelNames: ['upstream'],
    registers: [registry],
  });
  const backendCalls = counter('backend_calls_total', 'Calls of backends, by what came of them.', [
    'slot',
    'backend',
    'call',
    'code',
  ]);
  const backendSeconds = histogram('backend_seconds', 'How long calls of backends took.', ['slot', 'backend', 'call']);
  const spansSent = counter('spans_sent_total', 'Spans that the collector accepted.');
  const spansDropped = counter('spans_dropped_total', 'Spans that were not sent, by reason.', ['reason']);
  for (const reason of DROP_REASONS) spansDropped.inc({ reason }, 0); // Prometheus sees an increase only from a value.
  for (const outcome of ['done', 'refused']) reloads.inc({ outcome }, 0);
  for (const [name, help, read] of [
    ['process_start_time_seconds', 'When this process began.', () => performance.timeOrigin / 1000],
    ['process_resident_memory_bytes', 'Memory of this process.', () => process.memoryUsage.rss()],
  ] as const)
    new Gauge({
      name,
      help,
      registers: [registry],
      collect() {
        this.set(read());
      },
    });
  new Counter({
    name: 'process_cpu_seconds_total',
    help: 'Processor time of this process.',
    registers: [registry],
    collect() {
      const { user, system } = process.cpuUsage();
      this.reset();
      this.inc((user + system) / 1e6);
    },
  });
  const failures = counter('failures_total', 'Internal failures, by place.', ['where']);
  const faults = counter('faults_total', 'Errors that ended one request and nothing else, by place.', ['where']);
  for (const where of FAULT_PLACES) faults.inc({ where }, 0);

  new Counter({
    name: 'purser_log_lines_lost_total',
    help: 'Lines of the log that were lost because the reader of stderr did not keep up.',
    registers: [registry],
    collect() {
      this.reset();
      this.inc(lostLineCount());
    },
  });

  return {
    registry,
    operations,
    charged,
    boundExceeded,
    estimated,
    boundsLearned,
    walletsOpened,
    walletsClosed,
    leases,
    keepsEnded,
    fundsWaitSeconds,
    checkouts,
    clawedBack,
    refusals,
    cutOff,
    delivered,
    undelivered,
    gaveUp,
    reloads,
    tokens,
    upstreamCalls,
    requestTokens,
    upstreamSeconds,
    firstByteSeconds,
    upstreamUp,
    backendCalls,
    backendSeconds,
    spansSent,
    spansDropped,
    failures,
    faults,
    /** Adds a gauge with labels: `read` returns the value of each. */
    gauges<L extends string>(
      name: string,
      help: string,
      labelNames: L[],
      read: () => { labels: Record<L, string>; value: number }[],
    ) {
      new Gauge({
        name: `purser_${name}`,
        help,
        labelNames,
        registers: [registry],
        collect() {
          this.reset();
          for (const { labels, value } of read()) this.set(labels, value);
        },
      });
    },
    /** Adds a gauge. While `read` returns undefined, it has no value. */
    gauge(name: string, help: string, read: () => number | undefined) {
      new Gauge({
        name: `purser_${name}`,
        help,
        registers: [registry],
        collect() {
          const value = read();
          if (value === undefined) this.remove();
          else this.set(value);
        },
      });
    },
  };
}
