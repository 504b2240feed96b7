import { unreadyReason } from '../books/readiness.ts';
import type { Usage } from '../compute/backend.ts';
import type { ConfiguredBackend } from '../compute/slots.ts';
import { REPLICA_STATES, type Replica } from '../files/drbd.ts';
import { describeReportOnly } from '../lease/report-only.ts';
import { countFrozen } from '../ledger/frozen.ts';
import { journalHead } from '../ledger/journal.ts';
import type { App } from './app.ts';

/** The gauges of the tables of the books: the name, its help, and its query. A gauge whose query gives null is left out. */
const QUERIES: [name: string, help: string, sql: string][] = [
  ...['available', 'reserved', 'spent'].map((state): [string, string, string] => [
    `accounts_${state}_cents`,
    `Of all accounts: ${state}.`,
    `select coalesce(sum(${state}_cents), 0) from account`,
  ]),
  [
    'accounts_charged_usd',
    'Charged in all wallets, open ones included, with the rounding of closed ones.',
    `select (select coalesce(sum(spent_cents), 0) from account) / 100.0
      + (select coalesce(sum(spent_nanos), 0) from wallet join balance using (number) where status <> 'closed') / 1e9`,
  ],
  [
    'held_usd',
    'On hold for open operations.',
    "select coalesce(sum(hold_nanos), 0) / 1e9 from operation where state <> 'settled'",
  ],
  ['operations_open', 'Operations that are not settled.', "select count(*) from operation where state <> 'settled'"],
  [
    'operations_uncertain',
    'Operations whose outcome is unknown.',
    "select count(*) from operation where state = 'uncertain'",
  ],
  [
    'oldest_hold_created_seconds',
    'When the oldest open hold was made; none without one.',
    "select min(created_at) from operation where state <> 'settled'",
  ],
  ['wallets_open', 'Wallets that are not closed.', "select count(*) from wallet where status <> 'closed'"],
];

type Gauged = Pick<
  App,
  | 'ledger'
  | 'events'
  | 'diskReserve'
  | 'inFlight'
  | 'fundsQueue'
  | 'roomQueue'
  | 'notifier'
  | 'slots'
  | 'usages'
  | 'warm'
  | 'outages'
  | 'health'
  | 'clock'
  | 'retries'
  | 'storage'
  | 'replicas'
>;

/** Adds the gauges of everything that is open: each is read when the metrics are. */
export function addGauges(app: Gauged): void {
  const { events, inFlight } = app;
  addStorageGauges(app);
  addBooksGauges(app);
  addSlotGauges(app);
  events.gauge('events_waiting', 'Events that wait to be delivered to a receiver.', app.notifier.waiting);
  events.gauge(
    'requests_vacant',
    'Requests whose client has gone without an answer: a retry may take them over.',
    app.retries.abandonedCount,
  );
  events.gauge('requests_running', 'Paid requests in flight.', inFlight.count);
  events.gauge('requests_waiting', 'Requests that wait for money which others in flight hold.', app.fundsQueue.count);
  events.gauge('creates_waiting', 'Creates that wait until their slot has room.', app.roomQueue.count);
}

/** Adds the gauges of what the books lie on, and of whether they can be written. */
function addStorageGauges(app: Gauged): void {
  const { clock, events, diskReserve, storage, replicas } = app;
  events.gauge('ready', '1 while it can take new holds, as /readyz says, frozen or not.', () =>
    unreadyReason(app) ? 0 : 1,
  );
  events.gauge('storage_stalled', '1 once the disk has confirmed no commit in time: the server ends.', () =>
    storage.failure() ? 1 : 0,
  );
  events.gauges(
    'storage_replicas',
    'Other copies of a disk that replicates itself (DRBD), by state.',
    ['state'],
    () => {
      const { peers = [], unknown } = replicas.now() ?? {};
      if (unknown === undefined) return [];
      if (unknown !== null) return [{ labels: { state: 'unknown' }, value: 1 }];
      const count = (state: Replica['state']) => peers.filter((it) => it.state === state).length;
      return REPLICA_STATES.map((state) => ({ labels: { state }, value: count(state) }));
    },
  );
  events.gauge('disk_free_bytes', 'Free on the disk of the data directory, beside the reserve.', diskReserve.freeBytes);
  events.gauge(
    'clock_doubted',
    '1 while the clock is in doubt since the start: nothing expires and nothing is held.',
    () => (clock.doubt() ? 1 : 0),
  );
}

function addBooksGauges({ ledger, clock, events }: Gauged): void {
  events.gauge('commits', 'Commits of the ledger since the start.', ledger.commitCount);
  events.gauge('journal_seq', 'Number of the newest journal entry.', () => journalHead(ledger.read).seq);
  for (const scope of ['installation', 'account', 'wallet'] as const)
    events.gauge(
      `frozen_${scope}s`,
      `What takes no new holds: ${scope}s.`,
      () => countFrozen(ledger.read, clock.now())[scope],
    );
  events.gauge('report_only', '1 while leases of before are only reported.', () =>
    describeReportOnly(ledger.read) ? 1 : 0,
  );
  for (const [name, help, sql] of QUERIES)
    events.gauge(name, help, () => {
      const value = ledger.client.prepare(sql).pluck().get();
      return value === null ? undefined : Number(value);
    });
}

/** The metrics of the use of live leases: its source, and the part of a reading that is added up. */
const USAGE_GAUGES: {
  name: string;
  help: string;
  by: 'engine' | 'guest';
  part: (usage: Usage) => number | undefined;
}[] = [
  {
    name: 'cpu_seconds',
    help: 'Processor time that live leases have used.',
    by: 'engine',
    part: (it) => it.cpuSeconds,
  },
  { name: 'memory_bytes', help: 'Memory that live leases hold.', by: 'engine', part: (it) => it.memoryBytes },
  { name: 'disk_bytes', help: 'What live leases have written and hold.', by: 'engine', part: (it) => it.diskBytes },
  {
    name: 'network_bytes',
    help: 'What live leases have sent and received.',
    by: 'engine',
    part: (it) => it.networkBytes,
  },
  { name: 'gpus', help: 'GPUs of live leases whose use is known.', by: 'guest', part: (it) => it.gpus?.length },
  {
    name: 'gpu_utilization_percent',
    help: 'Utilization of the GPUs of live leases, 100 for each in full use.',
    by: 'guest',
    part: (it) => it.gpus?.reduce((sum, gpu) => sum + (gpu.utilizationPercent ?? 0), 0),
  },
  {
    name: 'gpu_memory_bytes',
    help: 'Memory that live leases hold on GPUs.',
    by: 'guest',
    part: (it) => it.gpus?.reduce((sum, gpu) => sum + (gpu.memoryBytes ?? 0), 0),
  },
];
const SOURCE_HELP = {
  engine: 'Only where the engine tells; none where it tells of no lease.',
  guest: 'As nvidia-smi in their machines said minutes ago, which their tenants can falsify.',
};

function addSlotGauges({ ledger, events, slots, outages, usages, warm }: Gauged): void {
  const slotLabels: ('slot' | 'backend')[] = ['slot', 'backend'];
  const labelsOf = ({ slot, backend }: ConfiguredBackend) => ({ slot, backend: backend.name });
  events.gauges('leases_live', 'Leases that have not ended.', slotLabels, () => {
    const live = ledger.client
      .prepare('select slot, backend, count(*) as value from resource where ended_at is null group by slot, backend')
      .all() as { slot: string; backend: string; value: bigint }[];
    return [
      ...slots.list.map((it) => ({ labels: labelsOf(it), value: 0 })),
      ...live.map(({ value, ...labels }) => ({ labels, value: Number(value) })),
    ];
  });
  events.gauges('backend_up', '0 while a step of a lease fails at the backend.', slotLabels, () =>
    slots.list.map((it) => ({ labels: labelsOf(it), value: outages.list(it.slotPath).length ? 0 : 1 })),
  );
  events.gauges('warm_machines', 'Machines that are kept made and wait for a lease.', slotLabels, () =>
    slots.list.map((it) => ({ labels: labelsOf(it), value: warm.count(it.backend) })),
  );
  const liveLeases = createLiveLeases(ledger);
  for (const { name, help, by, part } of USAGE_GAUGES)
    events.gauges(`leases_${name}`, `${help} ${SOURCE_HELP[by]}`, slotLabels, () => {
      const sums = new Map<string, { labels: { slot: string; backend: string }; value: number }>();
      for (const { id, ...labels } of liveLeases()) {
        const value = part(usages.get(id)?.[by].last() ?? {});
        if (value === undefined) continue;
        const key = `${labels.slot} ${labels.backend}`;
        sums.set(key, { labels, value: value + (sums.get(key)?.value ?? 0) });
      }
      return [...sums.values()];
    });
}

type LiveLease = { id: string; slot: string; backend: string };
/** Creates the list of live leases, which is read again once the books have changed: each gauge of their use asks for it. */
function createLiveLeases({ client, changeCount }: Gauged['ledger']): () => readonly LiveLease[] {
  const sql = 'select id, slot, backend from resource where ended_at is null';
  let known: { changes: number; leases: LiveLease[] } | undefined;
  return () => {
    const changes = changeCount();
    if (known?.changes !== changes) known = { changes, leases: client.prepare(sql).all() as LiveLease[] };
    return known.leases;
  };
}
