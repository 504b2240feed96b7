import * as v from 'valibot';
import { resourceKey } from '../../access/ssh-keys.ts';
import { fingerprint } from '../../base/fingerprint.ts';
import { Refusal } from '../../base/refusal.ts';
import type { Backend } from '../../compute/backend.ts';
import type { ConfiguredBackend } from '../../compute/slots.ts';
import { createLease, stopLease } from '../../lease/create.ts';
import { extendLease } from '../../lease/extend.ts';
import { keepLease } from '../../lease/keep.ts';
import { pauseLease, resumeLease } from '../../lease/pause.ts';
import { notRunning } from '../../lease/pausing.ts';
import { usageOf } from '../../lease/usage.ts';
import { endReasonOf } from '../../lease/why.ts';
import { type EndReason, listResourcesBelow, type Resource, resourceOf } from '../../ledger/resource.ts';
import { findWallet, refuseInactive, type Wallet } from '../../ledger/wallet.ts';
import { inTime } from '../../net/deadline.ts';
import { PAID_REFUSALS } from '../../spend/spend.ts';
import {
  ComputeRequest,
  CreateQuery,
  EgressAnswer,
  EgressRequest,
  ExtendRequest,
  KeepRequest,
  Offers,
  offer,
  ResourceId,
  ResourceList,
  ResourceSummary,
  SshAccess,
  specOf,
  summaryOf,
  usageSummary,
} from '../../wire/compute.ts';
import { endpoint, type HttpApp } from '../endpoint.ts';
import { PAGE_QUERY, pageOf } from '../page.ts';
import { PAID_HEADERS, paidHeaders } from '../paid.ts';
import { tagsOf } from '../tags.ts';

/** The time limit for a backend's offers. A slower slot is left out of the list and does not delay the others. */
const OFFERS_MILLISECONDS = 20_000;
/** The resource in the examples. */
export const ID = 'res_01k9v3c2mq8r5t7w1x4z6b0d2f';
const EXAMPLE = {
  id: ID,
  provider_id: 'f3a1',
  provider: 'provider_one',
  status: 'running',
  billing_state: 'settled',
  billing_policy: 'prepaid_time',
  charged_usd: '0.025',
  reserved_usd: '0.00',
  expires_at: 1795003600,
  purchased_seconds: 3600,
  price_hourly_usd: '0.025',
  supports_extension: false,
  wallet_id: 'wal_01k9v3c2mq8r5t7w1x4z6b0d2f',
  spec: { gpu: null, gpus: 0, cpus: 1, memory_gib: 1, max_seconds: 3600 },
  created_at: 1795000000,
  ready_at: 1795000000,
  ended_at: null,
  end_reason: null,
};

/** The refusals of `active`. */
export const ACTIVE_REFUSALS = [
  'not_found',
  'wallet_closed',
  'wallet_expired',
  'resource_not_active',
  'provider_not_configured',
] as const;
/** Returns a running resource with paid time left, its wallet and its backend. Throws `ACTIVE_REFUSALS`. */
export function active(
  app: HttpApp,
  { id: walletId }: Pick<Wallet, 'id'>,
  id: string,
): { wallet: Wallet; resource: Resource; backend: Backend; ref: string } {
  const resource = resourceOf(app.ledger.read, walletId, id);
  const wallet = findWallet(app.ledger.read, walletId) as Wallet;
  refuseInactive(app.ledger.read, wallet, app.clock.now());
  const { ref, status } = resource;
  const endReason = endReasonOf(app, id);
  if (endReason !== null) throw leaseEnded(endReason);
  if (status !== 'running' || ref === null) throw new Refusal('resource_not_active', notRunning(resource));
  const backend = app.slots.backendOf(resource);
  if (!backend) throw new Refusal('provider_not_configured');
  return { wallet, resource, backend, ref };
}

/** Returns the refusal of a call that needs a lease that is over. */
export const leaseEnded = (reason: EndReason, cause?: unknown) =>
  new Refusal('resource_not_active', `The lease is over (${reason}), and with it whatever ran in it.`, { cause });

type ListedOffer = ReturnType<typeof offer>;
/**
 * Merges the equal offers of several backends of a slot into one: it is available if one of them has room, and names a runtime if
 * all of them do.
 */
function mergeOffers(offers: readonly ListedOffer[]): ListedOffer[] {
  const merged = new Map<string, ListedOffer>();
  for (const it of offers) {
    const key = JSON.stringify([it.provider, it.offer_id ?? [it.description, it.spec]]);
    const { runtime, ...first } = merged.get(key) ?? it;
    const shared = runtime !== undefined && runtime === it.runtime ? { runtime } : {};
    merged.set(key, { ...first, ...shared, available: first.available || it.available });
  }
  return [...merged.values()];
}

/** Returns the offers of a backend. When it fails, logs an event and returns undefined; the others are unaffected. */
async function offersOf(app: HttpApp, { slot, backend }: ConfiguredBackend) {
  try {
    const offers = await inTime(backend.offers(), OFFERS_MILLISECONDS, 'The list of offers');
    return offers.map((it) => offer(slot, it));
  } catch (error) {
    app.events.failed('offers', error, { slot, backend: backend.name });
    return undefined;
  }
}

export const listOffers = endpoint({
  summary: 'List what can be leased; the spec of an offer can be posted back unchanged',
  scope: 'wallet',
  answer: Offers,
  refusals: ['provider_unavailable'],
  example: { answer: { offers: [], as_of: 1795000000 } },
  async run(app) {
    const lists = await Promise.all(app.slots.list.map((it) => offersOf(app, it)));
    if (lists.length && lists.every((it) => it === undefined))
      throw new Refusal('provider_unavailable', 'No provider can be reached at the moment. Retry later.', {
        retryAfterSeconds: 5,
      });
    return { body: { offers: mergeOffers(lists.flatMap((it) => it ?? [])), as_of: app.clock.now() } };
  },
});

export const listCompute = endpoint({
  summary:
    'List the resources of the wallet and of its children, newest first, at most 100; `before` gives the next page',
  scope: 'wallet',
  query: v.strictObject(PAGE_QUERY),
  answer: ResourceList,
  refusals: ['invalid_cursor'],
  example: { answer: { resources: [] } },
  async run(app, { principal: { wallet }, query }) {
    const page = await listResourcesBelow(app.ledger.read, wallet.id, pageOf(query, 'res'));
    return { body: { resources: page.map((it) => summaryOf(app, it)) } };
  },
});

export const createCompute = endpoint({
  summary: 'Prepay a fixed-duration lease',
  scope: 'wallet',
  idempotent: true,
  body: ComputeRequest,
  query: CreateQuery,
  answer: ResourceSummary,
  headers: PAID_HEADERS,
  refusals: [
    ...PAID_REFUSALS,
    'not_found',
    'resource_not_active',
    'provider_not_configured',
    'offer_not_found',
    'lease_limit_exceeded',
    'provider_unavailable',
    'capacity_unavailable',
  ],
  example: {
    body: { provider: 'provider_one', spec: { gpu: null, gpus: 0, cpus: 1, memory_gib: 1, max_seconds: 3600 } },
    answer: EXAMPLE,
  },
  async run(app, { principal, body, raw, idempotencyKey, requestId, headers, query, whenGone }) {
    const wait = query.wait_seconds === undefined ? undefined : Number(query.wait_seconds);
    const { snapshot } = query;
    const order = {
      walletId: principal.wallet.id,
      route: 'compute/create',
      idempotencyKey,
      // From another snapshot it is another request.
      fingerprint: fingerprint(snapshot === undefined ? raw : { ...(raw as object), snapshot }),
      requestId,
      tags: tagsOf(headers),
      traceparent: headers.traceparent,
      slot: body.provider,
      spec: specOf(body),
      snapshotId: snapshot,
      waitSeconds: wait,
      waitsForRoom: wait !== undefined,
      onResponseEnd: whenGone,
    };
    const { answer, replayed, paid } = await createLease(app, order);
    return { body: summaryOf(app, answer), replayed, headers: paidHeaders(app, order, paid) };
  },
});

export const extendCompute = endpoint({
  summary: 'Prepay more seconds on an active lease',
  scope: 'wallet',
  idempotent: true,
  body: ExtendRequest,
  answer: ResourceSummary,
  headers: PAID_HEADERS,
  refusals: [
    ...PAID_REFUSALS,
    'not_found',
    'provider_not_configured',
    'extension_not_supported',
    'resource_not_active',
    'lease_limit_exceeded',
  ],
  example: { body: { id: ID, additional_seconds: 600 }, answer: EXAMPLE },
  async run(app, { principal, body, raw, idempotencyKey, requestId, headers }) {
    const order = {
      walletId: principal.wallet.id,
      route: 'compute/extend',
      idempotencyKey,
      fingerprint: fingerprint(raw),
      requestId,
      tags: tagsOf(headers),
      traceparent: headers.traceparent,
      resource: resourceOf(app.ledger.read, principal.wallet.id, body.id),
      additionalSeconds: body.additional_seconds,
    };
    const { answer, replayed, paid } = await extendLease(app, order);
    return { body: summaryOf(app, answer), replayed, headers: paidHeaders(app, order, paid) };
  },
});

export const keepCompute = endpoint({
  summary: 'Extend a lease by short steps while its machine is busy; extend_seconds 0 ends that',
  scope: 'wallet',
  idempotent: true,
  body: KeepRequest,
  answer: ResourceSummary,
  refusals: [
    'not_found',
    'idempotency_conflict',
    'extension_not_supported',
    'provider_not_configured',
    'wallet_closed',
    'wallet_expired',
    'resource_not_active',
    'read_only',
  ],
  example: {
    body: { id: ID, extend_seconds: 300, max_seconds: 7200 },
    answer: {
      ...EXAMPLE,
      provider: 'provider_two',
      supports_extension: true,
      keep: {
        state: 'active',
        extend_seconds: 300,
        max_seconds: 7200,
        bought_seconds: 0,
        watches: null,
        reason: null,
        message: null,
      },
    },
  },
  async run(app, { principal, body, raw, idempotencyKey, requestId, headers }) {
    const resource = resourceOf(app.ledger.read, principal.wallet.id, body.id);
    const { replayed } = await keepLease(app, resource, {
      walletId: principal.wallet.id,
      resourceId: resource.id,
      idempotencyKey,
      fingerprint: fingerprint(raw),
      requestId,
      tags: tagsOf(headers),
      extendSeconds: body.extend_seconds,
      maxSeconds: body.max_seconds ?? 0,
    });
    return { body: summaryOf(app, resourceOf(app.ledger.read, principal.wallet.id, body.id)), replayed };
  },
});

export const narrowEgress = endpoint({
  summary:
    'Set what a running resource may reach of the operator’s list; it replaces the last one, and connections beside it are cut',
  scope: 'wallet',
  body: EgressRequest,
  answer: EgressAnswer,
  refusals: [...ACTIVE_REFUSALS, 'read_only'],
  example: { body: { id: ID, allow: ['pypi.org'] }, answer: { id: ID, allow: ['pypi.org'] } },
  async run(app, { principal, body: { id, allow } }) {
    const { resource } = active(app, principal.wallet, id);
    await app.egress.narrow(resource, allow);
    return { body: { id, allow } };
  },
});

const PAUSE_REFUSALS = [...ACTIVE_REFUSALS, 'provider_unavailable', 'operation_uncertain', 'read_only'] as const;

export const pauseCompute = endpoint({
  summary: 'Pause a running resource: what runs in it stops, and its paid time is kept, until its wallet expires',
  scope: 'wallet',
  body: ResourceId,
  answer: ResourceSummary,
  refusals: [...PAUSE_REFUSALS, 'lease_limit_exceeded'],
  example: { body: { id: ID }, answer: { ...EXAMPLE, status: 'paused', expires_at: 1795086400, seconds_left: 2400 } },
  async run(app, { principal, body }) {
    const { id } = resourceOf(app.ledger.read, principal.wallet.id, body.id);
    return { body: summaryOf(app, await pauseLease(app, id)) };
  },
});

export const resumeCompute = endpoint({
  summary: 'Resume a paused resource, with the paid time that it had left',
  scope: 'wallet',
  body: ResourceId,
  answer: ResourceSummary,
  refusals: [...PAUSE_REFUSALS, 'capacity_unavailable'],
  example: { body: { id: ID }, answer: EXAMPLE },
  async run(app, { principal, body }) {
    const { id } = resourceOf(app.ledger.read, principal.wallet.id, body.id);
    return { body: summaryOf(app, await resumeLease(app, id)) };
  },
});

export const stopCompute = endpoint({
  summary: 'Stop a resource',
  scope: 'wallet',
  body: ResourceId,
  answer: ResourceSummary,
  refusals: ['not_found'],
  example: {
    body: { id: ID },
    answer: { ...EXAMPLE, status: 'stopped', ended_at: 1795000600, end_reason: 'requested' },
  },
  async run(app, { principal, body }) {
    const { id } = resourceOf(app.ledger.read, principal.wallet.id, body.id);
    return { body: summaryOf(app, await stopLease(app, id)) };
  },
});

export const sshCompute = endpoint({
  summary: 'Get ssh access to a resource',
  scope: 'wallet',
  body: ResourceId,
  answer: SshAccess,
  refusals: ACTIVE_REFUSALS,
  example: {
    body: { id: ID },
    answer: {
      id: ID,
      host: '127.0.0.1',
      port: 7422,
      username: ID,
      private_key: '-----BEGIN OPENSSH PRIVATE KEY-----…',
      host_key: 'ssh-ed25519 AAAA…',
      command: `ssh -p 7422 ${ID}@127.0.0.1`,
      expires_at: 1795003600,
    },
  },
  run(app, { principal, body }) {
    const { wallet, resource } = active(app, principal.wallet, body.id);
    if (!app.state.ssh) throw new Refusal('provider_not_configured', 'The SSH gateway does not listen.');
    const { host, port, hostKey } = app.state.ssh;
    return {
      body: {
        id: resource.id,
        host,
        port,
        username: resource.id,
        private_key: resourceKey(app.keyring, wallet, resource).privateKey,
        host_key: hostKey,
        command: `ssh -i KEY_FILE -p ${port} ${resource.id}@${host}`,
        expires_at: resource.expiresAt,
      },
    };
  },
});

export const readCompute = endpoint({
  summary: 'Read a resource',
  scope: 'wallet',
  body: ResourceId,
  answer: ResourceSummary,
  refusals: ['not_found'],
  example: { body: { id: ID }, answer: EXAMPLE },
  async run(app, { principal, body }) {
    const usage = usageSummary(await usageOf(app, resourceOf(app.ledger.read, principal.wallet.id, body.id)));
    // The lease may have changed in the meantime.
    const summary = summaryOf(app, resourceOf(app.ledger.read, principal.wallet.id, body.id));
    const egress = app.egress.reached(body.id);
    const isRunning = summary.status === 'running';
    return { body: { ...summary, ...(usage && isRunning && { usage }), ...(egress && { egress }) } };
  },
});
