import type { Client } from 'ssh2';
import { wordOf } from '../../../base/parse-json.ts';
import { sshKeyFromSeed } from '../../../base/ssh-key.ts';
import type { Backend, Created, Extended, Machine, Owned, Quote, SpecThree } from '../../backend.ts';
import { channelsOf, separateChannels } from '../../kit/channel.ts';
import { connectSsh, type SshFault } from '../../kit/connect.ts';
import { refused } from '../../kit/created.ts';
import { beginOver, LOGIN_SHELL, runOver } from '../../kit/ssh-program.ts';
import { createGuest } from '../../machine/guest.ts';
import {
  type Answer,
  openVastApi,
  type Patience,
  type Spacing,
  VAST_PATIENCE,
  VAST_SPACING,
  VastUnreachable,
} from './api.ts';
import { checkVast } from './check.ts';
import { createVastOffers, idOf, numberOf, textOf } from './offers.ts';
import { onstart, SHOW_DEADLINE, setDeadline } from './onstart.ts';
import { createVastRecords, type VastRecord } from './records.ts';
import type { VastSettings } from './settings.ts';

const LIST_LIMIT = 25;
const PAGE_COUNT_MAX = 400;
/** A new instance may be missing from every list for this long; until then its absence proves nothing. */
const LAG_SECONDS = 60;
const BATCH_MILLISECONDS = 50;
const PROBE_MILLISECONDS = 5_000;
const DEADLINE_MILLISECONDS = 20_000;
/** A key takes a moment to reach the machine; if it is still refused after this, it is sent again. */
const ATTACH_AGAIN_MILLISECONDS = 30_000;

/** Statuses that refuse a create for certain; 404 and 410 only with `no_such_ask`. Any other leaves it unknown. */
const SAID_NO = new Set([400, 401, 403, 422]);
const MAYBE_TAKEN = new Set([404, 410]);
const GONE = new Set([404, 410]);

/** An instance as far as this backend reads it. */
type Instance = {
  ref: string;
  label: string;
  state: Machine['state'];
  createdAt: number | undefined;
  endDate: number | undefined;
  gpus: number;
  /** The possible addresses of its SSH server, the direct one first. */
  addresses: { host: string; port: number }[];
};

type VastOptions = {
  /** The directory for the records of the machines. */
  leases: string;
  now: () => number;
  spacing?: Spacing;
  patience?: Patience;
};

/**
 * Machines rented at Vast.ai. The tag is the instance's label, which Vast can search but does not keep unique. Vast
 * cannot end a machine at a chosen time: the deadline is a dead man's switch inside it, and the end of its contract
 * only stops it. Everything inside goes over SSH, with a separate key for each machine.
 */
export function openVastBackend(
  settings: VastSettings,
  { leases, now, spacing = VAST_SPACING, patience = VAST_PATIENCE }: VastOptions,
): Backend {
  const api = openVastApi(settings.base_url, settings.api_key.reveal(), { spacing, patience });
  const catalogue = createVastOffers(settings, api, now);
  const records = createVastRecords(leases);
  /** Offers being bought at this moment. Vast may sell one offer twice and let the second buyer fail silently. */
  const buying = new Set<string>();
  /** The latest known state of each machine, for its address and its contract's end. */
  const looks = new Map<string, Instance>();
  /** Machines whose SSH server has accepted our key, those that have been destroyed, and when a key was last sent. */
  const reached = new Set<string>();
  const doomed = new Map<string, string>();
  const attachedAt = new Map<string, number>();
  /** The time at which a machine without a start date was first seen. */
  const firstSeen = new Map<string, number>();
  /** The labels that the next list will ask for. */
  let batch: { labels: Set<string>; rows: Promise<Instance[]> } | undefined;

  async function create(order: { tag: string; quote: Quote; deadline: number }): Promise<Created> {
    const { offer_id: offerId } = order.quote.spec as SpecThree;
    if (buying.has(offerId))
      return {
        kind: 'refused',
        code: 'capacity_unavailable',
        reason: 'Somebody else is renting this offer at this moment. Nothing was charged.',
      };
    buying.add(offerId);
    try {
      return await buy(order);
    } finally {
      buying.delete(offerId);
    }
  }

  async function buy({ tag, quote, deadline }: { tag: string; quote: Quote; deadline: number }): Promise<Created> {
    const { offer_id: offerId, disk_gb: diskGb } = quote.spec as SpecThree;
    let answer: Answer;
    try {
      answer = await api.call('create', 'PUT', `/api/v0/asks/${offerId}/`, {
        client_id: 'me',
        image: settings.image,
        disk: diskGb,
        label: tag,
        runtype: settings.runtype,
        onstart: onstart(settings.base_url, deadline),
        ...(settings.runtype === 'ssh_direct' ? { env: { '-p 22:22': '1' } } : {}),
        cancel_unavail: true,
        target_state: 'running',
      });
    } catch (error) {
      if (!(error instanceof VastUnreachable) || error.sent)
        return { kind: 'unknown', reason: (error as Error).message };
      return refused('The provider cannot be reached', error.message);
    }
    // Checked first, whatever the status: a contract may come with an error. The machine is then found to have ended.
    const ref = idOf((answer.json as { new_contract?: unknown } | undefined)?.new_contract);
    if (ref !== undefined) {
      // With the other tag's record, this tenant would get the key to that machine.
      if ((records.read(ref)?.tag ?? tag) !== tag)
        return { kind: 'unknown', reason: `vast answered the create with the machine of another lease, ${ref}` };
      records.keep(ref, tag, { madeAt: now(), seen: false, deadline });
      return { kind: 'created', ref };
    }
    const { status, said } = answer;
    if (SAID_NO.has(status)) return refused('The provider refused the machine', said);
    if (MAYBE_TAKEN.has(status) && /no_such_ask/.test(said))
      return refused('Somebody else has just rented this offer', undefined, 'capacity_unavailable');
    return { kind: 'unknown', reason: `vast answered the create with ${said}` };
  }

  /** Every instance of the account, or those with these labels. Throws when the list is not complete. */
  async function list(label?: { eq: string } | { in: string[] }): Promise<Instance[]> {
    const found = new Map<string, Instance>();
    const query = new URLSearchParams({ limit: String(LIST_LIMIT) });
    if (label !== undefined) query.set('select_filters', JSON.stringify({ label }));
    for (let page = 0; page < PAGE_COUNT_MAX; page++) {
      const answer = await api.read('list', 'GET', `/api/v1/instances/?${query}`);
      const body = answer.json as { instances?: unknown; next_token?: unknown; total_instances?: unknown } | undefined;
      if (answer.status !== 200 || !Array.isArray(body?.instances))
        throw new Error(`vast: no list of instances: ${answer.said}`);
      for (const it of body.instances) {
        const instance = instanceOf(it);
        if (!instance) throw new Error('vast: an instance without an id is in the list');
        found.set(instance.ref, instance);
      }
      const next = body.next_token;
      if (next === null || next === undefined || next === '') {
        const total = numberOf(body.total_instances);
        if (label === undefined && total !== undefined && found.size < total)
          throw new Error(`vast: the list of instances is partial: ${found.size} of ${total}`);
        return [...found.values()];
      }
      if (String(next) === query.get('after_token')) throw new Error('vast: the list of instances does not end');
      query.set('after_token', String(next));
    }
    throw new Error('vast: the list of instances is too long');
  }

  async function find(tag: string): Promise<Instance[]> {
    const rank = { running: 0, provisioning: 1, ended: 2 };
    // Of several the first is kept: the one closest to running, and among equals the oldest.
    return (await list({ eq: tag }))
      .filter((it) => it.label === tag)
      .map(saw)
      .sort((a, b) => rank[a.state] - rank[b.state] || Number(a.ref) - Number(b.ref));
  }

  /** Returns the instance, or undefined when Vast reports that there is none. Throws when Vast's answer shows neither. */
  async function show(ref: string): Promise<Instance | undefined> {
    const answer = await api.read('show', 'GET', `/api/v0/instances/${ref}/`);
    const raw = (answer.json as { instances?: unknown } | undefined)?.instances;
    const instance = answer.status === 200 ? instanceOf(raw) : undefined;
    if (instance?.ref === ref) return saw(instance);
    if ((answer.status === 200 && raw === null) || GONE.has(answer.status)) return undefined;
    throw new Error(`vast: no instance ${ref}: ${answer.said}`);
  }

  function saw(instance: Instance): Instance {
    looks.set(instance.ref, instance);
    const record = records.read(instance.ref);
    if (record && !record.seen) records.change(instance.ref, { seen: true });
    return instance;
  }

  async function inspect(ref: string): Promise<Machine | undefined> {
    const instance = (await look(ref)) ?? (await secondLook(ref));
    const record = records.read(ref);
    if (!instance) {
      if (record && !record.seen && now() < record.madeAt + LAG_SECONDS) return { ref, state: 'provisioning' };
      forget(ref);
      doomed.delete(ref);
      return undefined;
    }
    const state = await stateOf(instance);
    if (state === 'running' && records.read(ref)?.deadline === undefined) await readDeadline(ref);
    return machineOf(instance, state);
  }

  /** Asks the machine for its deadline when it is not known here: after a lost connection or a lost record. */
  async function readDeadline(ref: string): Promise<void> {
    try {
      const client = await connect(ref, PROBE_MILLISECONDS);
      try {
        const order = { input: Buffer.alloc(0), streamBytesMax: 1000, milliseconds: DEADLINE_MILLISECONDS };
        const { exitCode, stdout } = await runOver(channelsOf(client), SHOW_DEADLINE, order);
        const deadline = stdout.toString().trim();
        if (exitCode === 0 && /^\d{1,12}$/.test(deadline)) records.change(ref, { deadline: Number(deadline) });
      } finally {
        client.end();
      }
    } catch {} // It stays unknown, and callers that need it wait.
  }

  /** Confirms an absence with a second query: one answer may come from a lagging or faulty replica. */
  async function secondLook(ref: string): Promise<Instance | undefined> {
    const tag = records.read(ref)?.tag || doomed.get(ref);
    const found = (await list(tag ? { eq: tag } : undefined)).find((it) => it.ref === ref);
    return found && saw(found);
  }

  /** Looks up one instance. Look-ups that wait at the same time are batched into one list. */
  async function look(ref: string): Promise<Instance | undefined> {
    const label = looks.get(ref)?.label;
    if (label && api.isBusy('show')) {
      const found = (await glance(label)).find((it) => it.ref === ref);
      if (found) return saw(found);
    }
    return show(ref);
  }

  function glance(label: string): Promise<Instance[]> {
    if (!batch || batch.labels.size >= LIST_LIMIT) {
      const labels = new Set<string>();
      const rows = new Promise((resolve) => setTimeout(resolve, BATCH_MILLISECONDS)).then(() => {
        if (batch?.labels === labels) batch = undefined;
        return list({ in: [...labels] });
      });
      batch = { labels, rows };
    }
    batch.labels.add(label);
    return batch.rows;
  }

  /** Returns the machine's state. It counts as running once its SSH server has accepted our key; until then it cannot be used. */
  async function stateOf(instance: Instance): Promise<Machine['state']> {
    const { ref, state } = instance;
    if (state !== 'running' || reached.has(ref) || doomed.has(ref)) return state;
    try {
      (await connect(ref, PROBE_MILLISECONDS)).end();
      return 'running';
    } catch {
      return 'provisioning';
    }
  }

  const machineOf = ({ ref }: Instance, state: Machine['state']): Machine => {
    const deadline = records.read(ref)?.deadline;
    return { ref, state, ...(deadline === undefined ? {} : { deadline }) };
  };

  function forget(ref: string): void {
    records.remove(ref);
    for (const it of [looks, reached, attachedAt, firstSeen]) it.delete(ref);
  }

  async function destroy(ref: string): Promise<void> {
    doomed.set(ref, records.read(ref)?.tag ?? looks.get(ref)?.label ?? '');
    const answer = await api.call('destroy', 'DELETE', `/api/v0/instances/${ref}/`);
    const body = answer.json as { success?: unknown; error?: unknown } | undefined;
    if (answer.status === 200 && body?.success === true) return forget(ref);
    if (!GONE.has(answer.status) && body?.error !== 'no_such_instance')
      throw new Error(`vast: instance ${ref} was not destroyed: ${answer.said}`);
    // A machine that was never seen may only be late: its record stays until its absence is certain.
    if (records.read(ref)?.seen !== false) forget(ref);
  }

  /** Connects to the machine as root, with its own key. */
  async function connect(ref: string, milliseconds?: number): Promise<Client> {
    const instance = looks.get(ref) ?? (await show(ref));
    if (!instance) throw new Error(`vast: instance ${ref} is gone`);
    const record = await keyOf(ref, instance.label);
    const { privateKey } = sshKeyFromSeed(Buffer.from(record.seed, 'base64'), record.tag);
    let fault: unknown = new Error(`vast: instance ${ref} has no address yet`);
    for (const address of instance.addresses) {
      // Vast does not publish a machine's host key: the first one that it shows is trusted, and no other afterwards.
      let shown = '';
      const isHost = (key: Buffer) => {
        shown = key.toString('base64');
        return record.hostKey === undefined || record.hostKey === shown;
      };
      try {
        const client = await connectSsh({ ...address, username: 'root', privateKey }, isHost, milliseconds);
        if (record.hostKey === undefined) records.change(ref, { hostKey: shown });
        reached.add(ref);
        return client;
      } catch (error) {
        fault = error;
        const since = performance.now() - (attachedAt.get(ref) ?? Number.NEGATIVE_INFINITY);
        if ((error as SshFault).level === 'client-authentication' && since > ATTACH_AGAIN_MILLISECONDS)
          records.change(ref, { attached: false });
      }
    }
    looks.delete(ref); // It may have moved: its address is asked for again.
    throw fault;
  }

  const channelsTo = (ref: string) => separateChannels(() => connect(ref));

  /** Returns the machine's record, after making sure that the machine has its key. */
  async function keyOf(ref: string, tag: string): Promise<VastRecord> {
    const record = records.keep(ref, tag);
    if (record.attached) return record;
    const { publicKey } = sshKeyFromSeed(Buffer.from(record.seed, 'base64'), record.tag);
    const answer = await api.call('attach', 'POST', `/api/v0/instances/${ref}/ssh/`, { ssh_key: publicKey });
    if (answer.status < 200 || answer.status > 299)
      throw new Error(`vast: instance ${ref} took no key: ${answer.said}`);
    attachedAt.set(ref, performance.now());
    records.change(ref, { attached: true });
    return record;
  }

  async function extend(ref: string, deadline: number): Promise<Extended> {
    const instance = looks.get(ref) ?? (await show(ref));
    if (!instance) return { kind: 'refused', reason: 'the machine is gone' };
    if (instance.endDate !== undefined && deadline > instance.endDate)
      return { kind: 'refused', reason: `its contract ends at ${Math.floor(instance.endDate)}` };
    let client: Client;
    try {
      client = await connect(ref);
    } catch (error) {
      return { kind: 'refused', reason: `the machine cannot be reached: ${(error as Error).message}` };
    }
    records.change(ref, { deadline: undefined }); // From here on only the machine knows its deadline, even if this process dies.
    try {
      const order = { input: Buffer.alloc(0), streamBytesMax: 1000, milliseconds: DEADLINE_MILLISECONDS };
      const { exitCode, stdout, stderr } = await runOver(channelsOf(client), setDeadline(deadline), order);
      if (exitCode !== 0 || stdout.toString().trim() !== String(deadline))
        return {
          kind: 'refused',
          reason: `the machine did not take it: ${textOf(stderr.toString().trim()) ?? exitCode}`,
        };
    } catch (error) {
      return { kind: 'unknown', reason: (error as Error).message };
    } finally {
      client.end();
    }
    records.change(ref, { deadline });
    return { kind: 'done' };
  }

  return {
    name: 'vast',
    absence: { lists: 2, apartSeconds: 60 },
    offers: catalogue.offers,
    quote: (spec) => catalogue.quote(spec as SpecThree),
    create,
    inspect,
    extend,
    destroy,
    find: async (tag) => (await find(tag)).map((it) => machineOf(it, it.state)),

    async listOwned(prefix): Promise<Owned[]> {
      const owned = (await list()).filter((it) => it.label.startsWith(prefix));
      return owned.map((it) => {
        const seenAt = firstSeen.get(it.ref) ?? now();
        if (it.createdAt === undefined) firstSeen.set(it.ref, seenAt);
        return { ...machineOf(it, it.state), tag: it.label, createdAt: it.createdAt ?? seenAt };
      });
    },

    guest: createGuest((ref, order) => beginOver(channelsTo(ref), order), {
      proofOf: async (ref) => ({ gpus: looks.get(ref)?.gpus, mayLackTool: true }),
      loginShell: LOGIN_SHELL,
    }),
    doctor: { check: () => checkVast(api, list, catalogue.offers), trial: 'costs_money' },
    close: () => api.close(),
  };
}

function instanceOf(raw: unknown): Instance | undefined {
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
 * decides, after that its lease continues. A stopped machine costs its disk and never comes back by itself: it has ended.
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
