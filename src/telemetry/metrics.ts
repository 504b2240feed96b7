import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { FAULT_SITES } from '../base/fault.ts';
import { lostLineCount } from '../base/log.ts';
import { VERSION } from '../files/version.ts';
import { hotCounter, hotHistogram } from './hot-metrics.ts';
import { DROP_REASONS } from './spans/exporter.ts';

/** Seconds: from the first byte of a quick model server to the longest answer. */
const SECONDS_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];
const COMMIT_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10];
const TOKENS_BUCKETS = [16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576];

const counter =
  <L extends string = never>(name: string, help: string, ...labelNames: L[]) =>
  (registry: Registry) =>
    new Counter({ name: `purser_${name}`, help, labelNames, registers: [registry] });
const histogram =
  <L extends string>(name: string, help: string, labelNames: L[], buckets = SECONDS_BUCKETS) =>
  (registry: Registry) =>
    new Histogram({ name: `purser_${name}`, help, labelNames, buckets, registers: [registry] });
const gauge =
  <L extends string>(name: string, help: string, ...labelNames: L[]) =>
  (registry: Registry) =>
    new Gauge({ name: `purser_${name}`, help, labelNames, registers: [registry] });

const everyCounter =
  (name: string, help: string, ...labelNames: string[]) =>
  (registry: Registry) =>
    hotCounter(registry, `purser_${name}`, help, labelNames);
const everyHistogram =
  (name: string, help: string, labelNames: string[], buckets = SECONDS_BUCKETS) =>
  (registry: Registry) =>
    hotHistogram(registry, `purser_${name}`, help, labelNames, buckets);

/** The metrics that events count, by their names in `events/`. */
const METRICS = {
  operations: everyCounter('operations_total', 'Operations by kind and outcome.', 'kind', 'outcome'),
  charged: everyCounter(
    'charged_usd_total',
    'Charged to wallets; the subject is a model or a slot.',
    'kind',
    'subject',
  ),
  boundExceeded: counter(
    'bound_exceeded_total',
    'Answers whose usage was above the bound; charged by usage, at most the hold.',
  ),
  estimated: counter(
    'usage_missing_total',
    'Answers without readable usage, charged by an estimate: the model server reported none, or broke off.',
  ),
  boundsLearned: counter('bounds_learned_total', 'Prompt bounds raised after a count above them.', 'upstream'),
  walletsOpened: counter('wallets_opened_total', 'Wallets opened.'),
  walletsClosed: counter('wallets_closed_total', 'Wallets closed, by reason.', 'reason'),
  egressBytes: counter('egress_bytes_total', 'Bytes that leases exchanged through the proxy, both ways together.'),
  egressRefused: counter('egress_refused_total', 'Connections through the proxy that leases were refused.'),
  leases: counter('leases_total', 'Lease events.', 'slot', 'backend', 'event'),
  fundsWaitSeconds: histogram(
    'funds_wait_seconds',
    'How long requests waited for money that others in flight held, by how that ended.',
    ['end'],
  ),
  commitSeconds: everyHistogram(
    'storage_commit_seconds',
    'How long commits took, until they were on disk.',
    [],
    COMMIT_BUCKETS,
  ),
  keepsEnded: counter('keeps_ended_total', 'Leases that are no longer extended while busy, by reason.', 'reason'),
  checkouts: counter('checkouts_total', 'Checkout events.', 'event'),
  clawedBack: counter('clawed_back_cents_total', 'Taken back by refunds and disputes.'),
  refusals: counter('refusals_total', 'Requests refused, by code.', 'code'),
  cutOff: counter('connections_cut_off_total', 'Connections closed by the server, by reason.', 'reason'),
  delivered: counter('events_delivered_total', 'Events accepted by a receiver.', 'receiver'),
  undelivered: counter('events_failed_total', 'Attempts to deliver an event that failed.', 'receiver'),
  gaveUp: counter('events_given_up_total', 'Events given up after 3 days of attempts.', 'receiver'),
  reloads: counter('reloads_total', 'Reloads of the settings, by outcome.', 'outcome'),
  build: gauge('build_info', 'The version.', 'version', 'node'),
  tokens: everyCounter('tokens_total', 'Tokens that were charged.', 'model', 'upstream', 'kind'),
  upstreamCalls: everyCounter(
    'upstream_calls_total',
    'Calls of model servers, by what came of them.',
    'model',
    'upstream',
    'code',
  ),
  requestTokens: everyHistogram(
    'request_tokens',
    'Tokens of one request that were charged.',
    ['model', 'upstream', 'kind'],
    TOKENS_BUCKETS,
  ),
  upstreamSeconds: everyHistogram('upstream_seconds', 'From a call of a model server to the end of its answer.', [
    'model',
    'upstream',
    'stream',
  ]),
  firstByteSeconds: everyHistogram(
    'upstream_first_byte_seconds',
    'From a call of a model server to the first byte of its answer.',
    ['model', 'upstream', 'stream'],
  ),
  upstreamUp: gauge('upstream_up', '0 while a model server is down; no value before the first call.', 'upstream'),
  backendCalls: counter(
    'backend_calls_total',
    'Calls of backends, by what came of them.',
    'slot',
    'backend',
    'call',
    'code',
  ),
  backendSeconds: histogram('backend_seconds', 'How long calls of backends took.', ['slot', 'backend', 'call']),
  spansSent: counter('spans_sent_total', 'Spans that the collector accepted.'),
  spansDropped: counter('spans_dropped_total', 'Spans that were not sent, by reason.', 'reason'),
  failures: counter('failures_total', 'Internal failures, by place.', 'where'),
  faults: counter('faults_total', 'Errors that ended one request and nothing else, by place.', 'where'),
};

type MetricsOf<T extends Record<string, (registry: Registry) => unknown>> = { [K in keyof T]: ReturnType<T[K]> };
export type Metrics = MetricsOf<typeof METRICS>;

/** Creates the metrics of a server and their registry. They are counted in `events/`; ids never become labels. */
export function createMetrics() {
  const registry = new Registry();
  const made = Object.entries(METRICS).map(([name, make]) => [name, make(registry)]);
  const metrics: Metrics = Object.fromEntries(made);
  metrics.build.set({ version: VERSION, node: process.versions.node }, 1);
  // Prometheus sees an increase only from a value.
  for (const reason of DROP_REASONS) metrics.spansDropped.inc({ reason }, 0);
  for (const outcome of ['done', 'refused']) metrics.reloads.inc({ outcome }, 0);
  for (const where of FAULT_SITES) metrics.faults.inc({ where }, 0);
  addProcess(registry);

  return {
    registry,
    metrics,
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

/** Adds what is read from the process itself. */
function addProcess(registry: Registry): void {
  const registers = [registry];
  for (const [name, help, read] of [
    ['process_start_time_seconds', 'When this process began.', () => performance.timeOrigin / 1000],
    ['process_resident_memory_bytes', 'Memory of this process.', () => process.memoryUsage.rss()],
  ] as const)
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(read());
      },
    });
  const processorSeconds = () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1e6;
  };
  for (const [name, help, read] of [
    ['process_cpu_seconds_total', 'Processor time of this process.', processorSeconds],
    [
      'purser_log_lines_lost_total',
      'Lines of the log that were lost because the reader of stderr did not keep up.',
      lostLineCount,
    ],
  ] as const)
    new Counter({
      name,
      help,
      registers,
      collect() {
        this.reset();
        this.inc(read());
      },
    });
}
