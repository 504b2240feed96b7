import { formatUsd, type Nanos } from '../base/money.ts';
import { NEW_KEY, RETRY_SAME_KEY, Refusal } from '../base/refusal.ts';
import { ANSWER_KEPT_SECONDS, answerBytes, findAnswer, type Operation, operationOf } from '../ledger/operation.ts';
import type { Tenant } from '../ledger/tenant.ts';
import { type AnswerReader, LARGE_BYTES } from '../router/apart.ts';
import { callInOrder, type Timing } from '../router/call.ts';
import { type Route, routeNameOf } from '../router/catalogue.ts';
import { isPass, type Pass } from '../router/circuit.ts';
import type { Refused, Reply } from '../router/reply.ts';
import type { TranscriptMemory } from '../router/transcript.ts';
import { uncertainPolicyOf } from '../router/uncertain.ts';
import type { Audience } from '../spend/audience.ts';
import {
  type Answered,
  type Called,
  type NotDone,
  refusedOutside,
  spend,
  UNCERTAIN_RETRY_SECONDS,
  type Waiters,
} from '../spend/spend.ts';
import { type AnswerSize, charge } from './charge.ts';
import { watchClients } from './clients.ts';
import { type ChatApp, type ChatRequest, type Detail, quoteChat, quoteWithin } from './quote.ts';
import { chatWrites } from './terms.ts';

/** A chargeable answer of a model server, and the route it came by. */
type Answering = {
  operation: Operation;
  detail: Detail;
  route: Route;
  reply: Exclude<Reply, Silent>;
  /** Returns whether the call was ended because no client waited for the answer. */
  isCancelled: () => boolean;
  /** The time at which the model server was asked (`performance.now()`). */
  began: number;
  /** Counts the memory of the answer until it has been delivered. */
  memory: TranscriptMemory;
};
type Silent = { kind: 'refused' | 'unknown' | 'cancelled' };
/** The request as it was bounded, once: that takes its body. */
type PreparedDetail = Omit<Detail, 'keep'>;

/**
 * Runs one metered request to a model: holds the bound, asks the routes in order, and settles the result that `take` makes of the
 * answer. A stream is stopped when no client has waited for it for a while, if the settings allow it. Throws
 * `unsupported_parameter`, `idempotency_key_expired`, `answer_lost`, `operation_uncertain`, definite refusals of the model server,
 * and PAID_REFUSALS.
 */
export function spendOnModel<A extends Buffer | null>(
  app: ChatApp,
  chat: ChatRequest,
  stream: boolean,
  take: (answering: Answering) => Called<A> | Promise<Called<A>>,
): Promise<Answered<A>> {
  const { prepare, maxPrice: _, forbidden: __, claim, conversation, ...request } = chat;
  let prepared: PreparedDetail | undefined;
  const prepareOnce = (): PreparedDetail => {
    prepared ??= { ...prepare(), upstreams: app.upstreams };
    return prepared;
  };
  const tenant = app.tenantOf(request.walletId);
  const delivery = openDelivery(app, tenant.treeId);
  const entry = entryOf(app, tenant, conversation);
  const keptSeconds = () => claim?.keptSeconds() ?? (request.isKeyMadeUp ? 0 : ANSWER_KEPT_SECONDS);
  const keep: Detail['keep'] = (make) => {
    const seconds = keptSeconds();
    const answer = seconds ? make() : null;
    const isKept = answer && app.keptAnswers.tryKeep(tenant, answer.length, seconds);
    return { answer: isKept ? answer : null, keptSeconds: seconds };
  };
  const callOf = (detail: PreparedDetail, earlier?: Operation) => ({
    enter: () => entry.enter(detail, earlier),
    leave: entry.leave,
    call(operation: Operation, { audience }: Waiters<A>): Promise<Called<A>> {
      claim?.moveTo(operation.idempotencyKey);
      delivery.stayUntil(audience.whenServed); // Clients that have joined are given the same bytes.
      const reader = { apart: app.readApart(tenant), enter: delivery.room.enter };
      return askAndTake(
        app,
        operation,
        { ...detail, keep },
        { ...entry.entered(), reader },
        stream && audience,
        (answering) => {
          claim?.begin();
          return take({ ...answering, memory: delivery.memory });
        },
      );
    },
  });
  const answered = spend<A, undefined>(
    app,
    { ...request, kind: 'chat' },
    {
      writes: chatWrites,
      quote: () => quoteChat(prepareOnce(), chat, callOf(prepareOnce())),
      quoteWithin: (earlier) => quoteWithin(prepareOnce(), chat, callOf(prepareOnce(), earlier), earlier),
      refuse: (operation, outcome) => refuse(app, operation, outcome),
      async replay(operation) {
        if (request.onResponseEnd) delivery.stayUntil(request.onResponseEnd);
        await delivery.enterForReplay(answerBytes(app.ledger.read, operation.id, app.clock.now()) ?? 0);
        return replay(app, operation) as A;
      },
    },
  );
  const ended = answered.finally(() => {
    entry.leave();
    delivery.leave();
  });
  return claim ? claim.follow(ended) : ended;
}

/** Opens the memory of one answer: it is freed when the request has ended and all deliveries of its answer are over. */
function openDelivery({ answerRooms, memory: quota }: ChatApp, treeId: string) {
  const room = answerRooms(treeId);
  const memory = quota.open(treeId);
  let userCount = 1;
  const leave = () => {
    if (--userCount > 0) return;
    room.leave();
    memory.close();
  };
  return {
    room,
    memory,
    leave,
    /** Keeps the memory until `onEnd` calls back. */
    stayUntil(onEnd: (listener: () => void) => void) {
      userCount++;
      onEnd(leave);
    },
    /** Waits for the memory of a stored answer: each replay has its own copy. */
    async enterForReplay(bytes: number) {
      if (bytes <= LARGE_BYTES) return;
      await room.enter();
      if (userCount === 1) throw new Refusal('invalid_request', 'The client has gone while its answer waited.');
    },
  };
}

/**
 * Asks the circuits, and for a place at the model server, before anything is held: their refusals leave nothing in the books.
 * What was entered once stays so until `leave`.
 */
function entryOf(app: ChatApp, tenant: Tenant, conversation: string | undefined) {
  let entered: Entered | undefined;
  return {
    entered: () => entered as Entered,
    enter({ model, bounded, upstreams }: PreparedDetail, earlier: Operation | undefined): Refusal | undefined {
      if (entered) return undefined;
      const routes = app.balancer.order(model, bounded, upstreams, conversation, tenant);
      const pass = app.circuits.enter(routes, () => tenant, upstreams);
      if (!isPass(pass)) return refusedOutside(earlier ? ofRetry(app, earlier, pass) : pass);
      entered = { pass, routes };
      return undefined;
    },
    leave() {
      entered?.pass.leave();
      entered = undefined;
    },
  };
}

/** The permission to ask, and the routes in the order in which they are asked. */
type Entered = { pass: Pass; routes: readonly Route[] };

/** Asks the model, and takes its answer. With an `audience`, a call that no client waits for is cancelled. */
async function askAndTake<A extends Buffer | null>(
  app: ChatApp,
  operation: Operation,
  detail: Detail,
  by: Entered & { reader: AnswerReader },
  audience: Audience | false,
  take: (answering: Omit<Answering, 'memory'>) => Called<A> | Promise<Called<A>>,
): Promise<Called<A>> {
  const cancelling = audience ? watchClients(app, audience) : undefined;
  const stream = audience !== false;
  try {
    const { route, reply, began } = await ask(app, operation, detail, by, stream, cancelling?.of);
    if (stream) detail.bounded.release();
    if (reply.kind === 'cancelled') return cancelledEarly(app, operation, detail, route, reply);
    if (reply.kind === 'refused' || reply.kind === 'unknown' || (reply.kind === 'streaming' && !stream))
      return { outcome: notDone(reply, detail, route), answer: unreachable };
    const isCancelled = () => cancelling?.isCancelled() ?? false;
    return await take({ operation, detail, route, reply, isCancelled, began });
  } finally {
    cancelling?.end(); // A call that has ended cannot be cancelled while its outcome is written.
  }
}

const unreachable = () => {
  throw new Error('only an outcome that is done has an answer');
};

/** Asks the routes in order. Any error during a call is an unknown outcome. */
async function ask(
  app: ChatApp,
  operation: Operation,
  { bounded, upstreams }: Detail,
  entered: Entered & { reader: AnswerReader },
  stream: boolean,
  cancelOf: ((route: Route) => AbortSignal) | undefined,
): Promise<{ route: Route; reply: Reply; began: number }> {
  const { accountId } = app.tenantOf(operation.walletId);
  try {
    const skipped = ({ upstream }: Route, { reason }: Refused) =>
      app.events.upstreamSkipped(operation, upstream, reason);
    const called = (route: Route, reply: Reply, timing: Timing) => {
      app.events.upstreamCalled(operation, route, reply, stream, timing);
      // The server may have been replaced or removed by a reload: its reply tells nothing about the one that has its name.
      if (app.upstreams.get(route.upstream) !== upstreams.get(route.upstream)) return;
      app.upstreamOutages.report(route.upstream, reply, accountId);
      if (reply.kind === 'refused' && reply.fault) app.events.misconfigured(operation, route.upstream, reply.fault);
    };
    const { id } = operation;
    return await callInOrder({ ...entered, upstreams }, bounded, id, stream, skipped, called, cancelOf);
  } catch (cause) {
    const reason = `the call ended without an answer: ${(cause as Error).message}`;
    return { route: entered.routes[0] as Route, reply: { kind: 'unknown', reason }, began: performance.now() };
  }
}

/**
 * Ends a call whose clients left before an answer began. A sent prompt is assumed to have been processed. On a hold that was taken
 * over, this does not resolve the earlier attempt, so the hold stays.
 */
function cancelledEarly(
  app: ChatApp,
  operation: Operation,
  detail: Detail,
  route: Route,
  { isSent }: { isSent: boolean },
): Called<never> {
  if (operation.state !== 'reserved')
    return { outcome: notDone({ kind: 'unknown', reason: CANCELLED }, detail, route), answer: unreachable };
  if (isSent) return cancelled(operation, charge(app, operation, detail, route, NOTHING_CAME));
  const outcome = { kind: 'refused', code: 'gateway_unavailable', reason: CANCELLED, isCancelled: true } as const;
  return { outcome, answer: unreachable };
}

const NOTHING_CAME: AnswerSize = { counts: undefined, isCounted: false, tokensDelivered: 0 };
const CANCELLED = 'its client went away, and nobody came for it';

/** Settles a cancelled call at its charge. A later request for the answer with its key gets that as the refusal. */
export function cancelled(operation: Operation, charged: { charge: Nanos; usage: string }): Called<never> {
  return {
    outcome: { kind: 'done', ...charged, answer: null, reason: CANCELLED, isCancelled: true },
    answer: () => {
      throw lost(operation.charge ?? charged.charge, true);
    },
  };
}

/** Returns the outcome of a reply that cannot be charged. */
function notDone(reply: Reply, { model }: Pick<Detail, 'model'>, route: Route): NotDone {
  if (reply.kind === 'refused') {
    const { elsewhere: _, fault: __, isUnreachable: ___, ...outcome } = reply;
    return outcome;
  }
  return {
    kind: 'unknown',
    reason: reply.kind === 'unknown' ? reply.reason : 'the upstream streamed although no stream was requested',
    // Also that of the only one: its policy decides, though a reload may have moved the model to another.
    route: { upstream: route.upstream, ...routeNameOf(model, route) },
  };
}

/** The refusal that the caller gets once the outcome is on disk. */
function refuse(app: ChatApp, { id }: Operation, outcome: NotDone): Refusal {
  const operation = operationOf(app.ledger.read, id);
  if (outcome.kind === 'unknown') return uncertainChat(app, operation);
  return refusedOutside(operation.outcome === 'released' ? outcome : ofRetry(app, operation, outcome));
}

/** Returns the refusal of a retry on the hold of an earlier attempt, which it does not resolve. */
function ofRetry<R extends { reason: string }>(app: Pick<ChatApp, 'config'>, earlier: Operation, refused: R): R {
  const reason = refused.reason.replace(' Nothing was charged.', '').replace(/[^.!?]$/, '$&.');
  return { ...refused, reason: `${reason} ${moneyOf('the earlier attempt', app, earlier)}` };
}

/** Returns the stored answer of an operation that is no longer running. Throws a refusal if there is none. */
function replay(app: ChatApp, operation: Operation): Buffer {
  if (operation.state !== 'settled') throw uncertainChat(app, operation);
  const answer = findAnswer(app.ledger.read, operation.id, app.clock.now());
  if (answer) return answer;
  // A complete answer settles without a reason, so it was stored and has expired.
  if (operation.settledBy === 'answer' && operation.reason === null) throw new Refusal('idempotency_key_expired');
  throw lost(operation.charge as Nanos, operation.settledBy === 'cancelled');
}

/** Returns the refusal for an answer that was charged but never arrived completely. */
export function lost(charge: Nanos, isCancelled = false): Refusal {
  const how = isCancelled
    ? 'This request was cancelled when its client went away,'
    : 'The answer to this request was lost';
  return new Refusal(
    'answer_lost',
    `${how} and ${formatUsd(charge)} USD were charged for it. That is final; ${NEW_KEY}`,
  );
}

/** Returns the refusal for an answer that broke off because the context of the model was full: agents then compact it. */
export const outOfContext = (charge: Nanos) =>
  new Refusal(
    'context_length_exceeded',
    `The context of the model is full, and the answer broke off. ${formatUsd(charge)} USD were charged for it. That is final; ${NEW_KEY}`,
  );

/** Returns the refusal for an unknown outcome: it states when and how the hold will be resolved. */
function uncertainChat(app: Pick<ChatApp, 'config'>, operation: Operation): Refusal {
  return new Refusal(
    'operation_uncertain',
    `The outcome is not known: the model server may have done the work. ${moneyOf('it', app, operation)} ${RETRY_SAME_KEY}`,
    { retryAfterSeconds: UNCERTAIN_RETRY_SECONDS },
  );
}

/**
 * Describes the hold for `what`, whose outcome is unknown, and its resolution; or the charge that a policy or the operator
 * has made for it.
 */
function moneyOf(what: string, { config }: Pick<ChatApp, 'config'>, operation: Operation): string {
  if (operation.outcome === 'charged') return `${formatUsd(operation.charge as Nanos)} USD were charged for ${what}.`;
  const { after_seconds: seconds, policy } = uncertainPolicyOf(config.router, operation);
  const end = policy === 'charge' ? 'charged' : 'given back';
  return `The ${formatUsd(operation.hold)} USD held for ${what} are ${end} after ${seconds} s, or when the wallet is closed, unless the operator decides before that.`;
}
