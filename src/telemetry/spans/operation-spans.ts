import type { TimeSource } from '../../base/clock.ts';
import { redactTokens } from '../../base/log.ts';
import { parseJson } from '../../base/parse-json.ts';
import type { Operation, Outcome } from '../../ledger/operation.ts';
import type { Resource } from '../../ledger/resource.ts';
import type { Route } from '../../router/catalogue.ts';
import type { Exporter } from './exporter.ts';
import type { Span, SpanAttributes } from './otlp.ts';
import { newContext, readTraceparent, type SpanContext } from './trace-context.ts';

/** Operations and leases whose context is remembered. Beyond it the oldest is forgotten, and begins a trace of its own. */
const REMEMBERED_COUNT_MAX = 20_000;

/**
 * Makes one span of each operation when it is settled: for an uncertain one that is when its outcome is decided. Makes one of each
 * lease, too, when it has ended. Attributes are those of the semantic conventions for generative AI, and `purser.*`; they contain
 * no part of a prompt, an answer, or another text from outside.
 */
export type OperationSpans = {
  /** An attempt has its hold. `traceparent` is the header that its caller sent, if any. */
  held(operation: Operation, traceparent: unknown): void;
  /** A model server has been called for it; if there were several calls, the last one counts. */
  called(operation: Operation, route: Route, isStream: boolean, firstByteSeconds: number | undefined): void;
  /** The attempt has ended. An unknown outcome is decided later. */
  settled(operation: Operation, outcome: Outcome<unknown>): void;
  /** An uncertain operation has been settled. */
  decided(operation: Operation): void;
  leaseEnded(lease: Resource): void;
};

/** The facts about an operation that its row does not contain. Times are milliseconds since 1970. */
type OpenSpan = SpanContext & {
  parentSpanId: string | undefined;
  startedAt: number;
  endedAt?: number;
  call?: { route: Route; isStream: boolean; firstByteSeconds: number | undefined };
};
type OperationEnd = {
  outcome: 'charged' | 'released';
  charge: bigint;
  usage: string | null;
  error: string | undefined;
  settledBy: string;
};

const NANOS_PER_USD = 1e9;
const usd = (nanos: bigint) => Number(nanos) / NANOS_PER_USD;

export function createOperationSpans(
  exporter: Pick<Exporter, 'add'>,
  accountOf: (walletId: string) => string | undefined,
  time: TimeSource,
  failed: (error: unknown) => void,
): OperationSpans {
  const attempts = createMemory<OpenSpan>();
  /** The span of the operation that created a lease, by lease. */
  const leases = createMemory<SpanContext>();
  const now = () => time.wall();
  /** An error about a span must not affect the operation. */
  const add = (make: () => Span) => {
    try {
      exporter.add(make());
    } catch (error) {
      failed(error);
    }
  };

  const emit = (operation: Operation, end: OperationEnd) => add(() => spanOf(operation, end));

  function spanOf(operation: Operation, end: OperationEnd): Span {
    const { id, createdAt, uncertainAt } = operation;
    // After a restart only the row is known, in whole seconds.
    const { parentSpanId, startedAt, endedAt, call, ...context }: OpenSpan = attempts.take(id) ?? {
      ...newContext(undefined),
      parentSpanId: undefined,
      startedAt: createdAt * 1000,
      ...(uncertainAt === null || operation.kind !== 'chat' ? {} : { endedAt: uncertainAt * 1000 }),
    };
    if (operation.kind === 'compute_create' && end.outcome === 'charged' && operation.resourceId)
      leases.put(operation.resourceId, context);
    const { name, attributes } =
      operation.kind === 'chat' ? modelCall(operation, end, call) : { name: leaseCall(operation), attributes: {} };
    return {
      context,
      parentSpanId,
      name,
      kind: 'client',
      startedAt,
      endedAt: endedAt ?? now(),
      attributes: { ...attributes, ...paidAttributes(operation, end, accountOf(operation.walletId)) },
      error: end.error,
    };
  }

  return {
    held(operation, traceparent) {
      const parent = readTraceparent(traceparent);
      attempts.put(operation.id, { ...newContext(parent), parentSpanId: parent?.spanId, startedAt: now() });
    },
    called(operation, route, isStream, firstByteSeconds) {
      const attempt = attempts.get(operation.id);
      if (attempt) attempt.call = { route, isStream, firstByteSeconds };
    },
    settled(operation, outcome) {
      if (outcome.kind !== 'unknown') return emit(operation, endOf(operation, outcome));
      const attempt = attempts.get(operation.id);
      // The backend is asked for the outcome of a lease; nothing more is learned of a model call.
      if (attempt && operation.kind === 'chat') attempt.endedAt = now();
    },
    decided(operation) {
      const { outcome, charge, usage, settledBy } = operation;
      emit(operation, {
        outcome: outcome ?? 'released',
        charge: charge ?? 0n,
        usage,
        error: 'operation_uncertain',
        settledBy: settledBy ?? 'policy',
      });
    },
    leaseEnded(lease) {
      const parent = leases.take(lease.id);
      add(() => leaseSpan(lease, parent, accountOf(lease.walletId), now()));
    },
  };
}

/** Returns what an answer or a refusal states about the end of an operation, whose row may be from before it. */
function endOf(operation: Operation, outcome: Exclude<Outcome<unknown>, { kind: 'unknown' }>): OperationEnd {
  const settledBy = operation.settledBy ?? (outcome.isCancelled ? 'cancelled' : 'answer');
  if (outcome.kind === 'refused')
    return { outcome: 'released', charge: 0n, usage: null, error: outcome.code, settledBy };
  const { charge, usage, reason } = outcome;
  return { outcome: 'charged', charge, usage, error: reason === undefined ? undefined : 'answer_lost', settledBy };
}

const paidAttributes = (operation: Operation, end: OperationEnd, accountId: string | undefined): SpanAttributes => ({
  'purser.operation.id': operation.id,
  'purser.operation.kind': operation.kind,
  'purser.request.id': operation.requestId,
  'purser.wallet.id': operation.walletId,
  'purser.account.id': accountId,
  'purser.resource.id': operation.resourceId ?? undefined,
  'purser.outcome': end.outcome,
  'purser.settled_by': end.settledBy,
  'purser.cost_usd': usd(end.charge),
  'purser.hold_usd': usd(operation.hold),
});

const leaseSpan = (
  lease: Resource,
  parent: SpanContext | undefined,
  accountId: string | undefined,
  endedAt: number,
): Span => ({
  context: newContext(parent),
  parentSpanId: parent?.spanId,
  name: `lease ${lease.slot}`,
  kind: 'internal',
  startedAt: lease.createdAt * 1000,
  endedAt,
  attributes: {
    'purser.resource.id': lease.id,
    'purser.operation.id': lease.operationId,
    'purser.wallet.id': lease.walletId,
    'purser.account.id': accountId,
    'purser.slot': lease.slot,
    'purser.backend': lease.backend,
    'purser.lease.end_reason': lease.endReason ?? undefined,
    // Contained in `purser.cost_usd` of its operations, which is summed: so this has another name.
    'purser.lease.charged_usd': usd(lease.charged),
  },
  error: lease.status === 'failed' ? (lease.endReason ?? 'failed') : undefined,
});

const leaseCall = ({ kind, subject }: Operation) => `${kind} ${subject}`;

/** The names of operations on models, by the route. */
const OPERATIONS: Record<string, string> = {
  'router/embeddings': 'embeddings',
  'router/completions': 'text_completion',
  'router/rerank': 'rerank',
};

/** Names and describes the call of a model as the semantic conventions for generative AI do. */
function modelCall(
  { route, subject, tags }: Operation,
  { usage, charge }: OperationEnd,
  call: OpenSpan['call'],
): Pick<Span, 'name' | 'attributes'> {
  const name = OPERATIONS[route] ?? 'chat';
  const counted = usage === null ? {} : (parseJson(usage) as Record<string, unknown>);
  const count = (member: string) => {
    const value = counted[member];
    return typeof value === 'number' && Number.isSafeInteger(value) ? BigInt(value) : undefined;
  };
  const { session } = tags === null ? {} : (parseJson(tags) as Record<string, string>);
  const attributes: SpanAttributes = {
    'gen_ai.operation.name': name,
    'gen_ai.provider.name': call?.route.upstream,
    'gen_ai.request.model': subject,
    'gen_ai.response.model': call?.route.upstreamModel,
    'gen_ai.request.stream': call?.isStream,
    'gen_ai.response.time_to_first_chunk': call?.isStream ? call.firstByteSeconds : undefined,
    'gen_ai.conversation.id': session === undefined ? undefined : redactTokens(session), // Chosen by a caller.
    'gen_ai.usage.input_tokens': count('prompt_tokens'),
    'gen_ai.usage.output_tokens': count('completion_tokens'),
    'gen_ai.usage.cache_read.input_tokens': count('cache_read_tokens'),
    'gen_ai.usage.cache_creation.input_tokens': count('cache_write_tokens'),
    'gen_ai.usage.cost': usd(charge), // In no convention yet; observability services read it.
    'purser.usage.estimated': counted.estimated === true ? true : undefined,
  };
  return { name: `${name} ${subject}`, attributes };
}

/** A map that forgets its oldest entry when there are too many. */
function createMemory<T>() {
  const entries = new Map<string, T>();
  return {
    get: (id: string) => entries.get(id),
    put(id: string, value: T) {
      entries.delete(id);
      entries.set(id, value);
      if (entries.size > REMEMBERED_COUNT_MAX) entries.delete(entries.keys().next().value as string);
    },
    take(id: string) {
      const value = entries.get(id);
      entries.delete(id);
      return value;
    },
  };
}
