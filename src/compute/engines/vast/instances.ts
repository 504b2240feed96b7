import { setTimeout as sleep } from 'node:timers/promises';
import { wordOf } from '../../../base/parse-json.ts';
import type { Machine } from '../../backend.ts';
import { hasFailed, type VastAnswer, type VastApi } from './api.ts';
import { idOf, numberOf } from './offers.ts';

const LIST_LIMIT = 25;
const PAGE_COUNT_MAX = 400;
const BATCH_MILLISECONDS = 50;
const GONE = new Set([404, 410]);

/** An instance at Vast, as far as this backend reads it. */
export type VastInstance = {
  ref: string;
  label: string;
  state: Machine['state'];
  createdAt: number | undefined;
  endDate: number | undefined;
  gpus: number;
  /** The possible addresses of its SSH server, the direct one first. */
  addresses: { host: string; port: number }[];
};

/** The instances of an account: `list` is the whole of it, or those with some labels. */
export function createInstances(api: VastApi) {
  /** The labels that the next list will ask for. */
  let batch: { labels: Set<string>; rows: Promise<VastInstance[]> } | undefined;

  /** Throws when the list is not complete. */
  async function list(label?: { eq: string } | { in: string[] }): Promise<VastInstance[]> {
    const instances = new Map<string, VastInstance>();
    const query = new URLSearchParams({ limit: String(LIST_LIMIT) });
    if (label !== undefined) query.set('select_filters', JSON.stringify({ label }));
    for (let page = 0; page < PAGE_COUNT_MAX; page++) {
      const { some, next, total } = pageOf(await api.read('list', 'GET', `/api/v1/instances/?${query}`));
      for (const it of some) instances.set(it.ref, it);
      if (next === null || next === undefined || next === '') {
        if (label === undefined && total !== undefined && instances.size < total)
          throw new Error(`vast: the list of instances is partial: ${instances.size} of ${total}`);
        return [...instances.values()];
      }
      if (String(next) === query.get('after_token')) throw new Error('vast: the list of instances does not end');
      query.set('after_token', String(next));
    }
    throw new Error('vast: the list of instances is too long');
  }

  /** Returns the instance, or undefined when Vast reports that there is none. Throws when Vast's answer shows neither. */
  async function show(ref: string): Promise<VastInstance | undefined> {
    const answer = await api.read('show', 'GET', `/api/v0/instances/${ref}/`);
    const raw = (answer.json as { instances?: unknown } | undefined)?.instances;
    const instance = answer.status === 200 ? instanceOf(raw) : undefined;
    if (instance?.ref === ref) return instance;
    if ((answer.status === 200 && raw === null && !hasFailed(answer)) || GONE.has(answer.status)) return undefined;
    throw new Error(`vast: no instance ${ref}: ${answer.words}`);
  }

  /** Lists the instances with this label, and with those of the calls that wait at the same time. */
  function listInBatch(label: string): Promise<VastInstance[]> {
    if (!batch || batch.labels.size >= LIST_LIMIT) {
      const labels = new Set<string>();
      const rows = sleep(BATCH_MILLISECONDS).then(() => {
        if (batch?.labels === labels) batch = undefined;
        return list({ in: [...labels] });
      });
      batch = { labels, rows };
    }
    batch.labels.add(label);
    return batch.rows;
  }

  return {
    list,
    show,

    /** Returns the instances with exactly this label: first those closest to running, and among equals the oldest. */
    async labelled(label: string): Promise<VastInstance[]> {
      const rank = { running: 0, provisioning: 1, ended: 2 };
      return (await list({ eq: label }))
        .filter((it) => it.label === label)
        .sort((a, b) => rank[a.state] - rank[b.state] || Number(a.ref) - Number(b.ref));
    },

    /** Looks up one instance, as `show` does. If that has to wait, look-ups with a known label are batched into one list. */
    async look(ref: string, label: string | undefined): Promise<VastInstance | undefined> {
      const isBatched = label && api.isBusy('show');
      return (isBatched && (await listInBatch(label)).find((it) => it.ref === ref)) || show(ref);
    },

    /** Asks Vast to destroy an instance. Returns whether it did; otherwise there is none. Throws when neither is certain. */
    async destroy(ref: string): Promise<boolean> {
      const answer = await api.call('destroy', 'DELETE', `/api/v0/instances/${ref}/`);
      const body = answer.json as { success?: unknown; error?: unknown } | undefined;
      if (answer.status === 200 && body?.success === true) return true;
      if (!GONE.has(answer.status) && body?.error !== 'no_such_instance')
        throw new Error(`vast: instance ${ref} was not destroyed: ${answer.words}`);
      return false;
    },
  };
}

/** Reads one page of the list of instances. */
function pageOf(answer: VastAnswer): {
  some: VastInstance[];
  next: unknown;
  total: number | undefined;
} {
  const { status, json, words } = answer;
  const body = json as { instances?: unknown; next_token?: unknown; total_instances?: unknown } | undefined;
  if (status !== 200 || hasFailed(answer) || !Array.isArray(body?.instances))
    throw new Error(`vast: no list of instances: ${words}`);
  const some = body.instances.map((it) => {
    const instance = instanceOf(it);
    if (!instance) throw new Error('vast: an instance without an id is in the list');
    return instance;
  });
  return { some, next: body.next_token, total: numberOf(body.total_instances) };
}

function instanceOf(raw: unknown): VastInstance | undefined {
  const it = (raw ?? {}) as Record<string, unknown>;
  const ref = idOf(it.id);
  if (ref === undefined) return undefined;
  const start = numberOf(it.start_date);
  return {
    ref,
    label: typeof it.label === 'string' ? it.label : '',
    state: statusOf(it),
    createdAt: start === undefined ? undefined : Math.floor(start),
    endDate: numberOf(it.end_date),
    gpus: numberOf(it.num_gpus) ?? 0,
    addresses: addressesOf(it),
  };
}

/**
 * Returns the state of an instance. `offline`, `unknown` and `frozen` may recover: before a machine is ready its provisioning time
 * decides, later its lease continues. A stopped machine costs its disk and never returns by itself: it has ended.
 */
function statusOf(it: Record<string, unknown>): Machine['state'] {
  const { actual_status: status, status_msg: message } = it;
  if (status === 'stopped' || status === 'exited') return 'ended';
  if ([it.cur_state, it.intended_status, it.next_state].every((state) => state === 'stopped')) return 'ended';
  if (status === 'created' && /OCI runtime create failed/.test(wordOf(message))) return 'ended';
  return status === 'running' ? 'running' : 'provisioning';
}

function addressesOf(it: Record<string, unknown>): { host: string; port: number }[] {
  const direct = (it.ports as Record<string, { HostPort?: unknown }[] | undefined> | null | undefined)?.['22/tcp'];
  const candidates: [unknown, unknown][] = [
    [it.public_ipaddr, Array.isArray(direct) ? direct[0]?.HostPort : undefined],
    [it.ssh_host, it.ssh_port],
  ];
  return candidates.flatMap(([host, port]) => {
    const number = Number(port);
    if (typeof host !== 'string' || !host.trim() || !Number.isInteger(number) || number < 1 || number > 65_535)
      return [];
    return [{ host: host.trim(), port: number }];
  });
}
