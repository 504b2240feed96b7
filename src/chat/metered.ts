import { ANSWER_KEPT_SECONDS, findAnswer, type Operation, operationOf } from '../ledger/operation.ts';
import { formatUsd, type Nanos } from '../money.ts';
import { NEW_KEY, RETRY_SAME_KEY, Refusal } from '../refusal.ts';
import { callInOrder, type Timing } from '../router/call.ts';
import type { Route } from '../router/catalogue.ts';
import { uncertainPolicyOf } from '../router/uncertain.ts';
import type { Refused, Reply } from '../router/upstream.ts';
import {
  type Answered,
  type Called,
  type NotDone,
  refusedOutside,
  spend,
  UNCERTAIN_RETRY_SECONDS,
} from '../spend/spend.ts';
import { type ChatApp, type ChatRequest, type Detail, quoteChat } from './quote.ts';
import { type ChatTerms, chatWrites } from './terms.ts';

/** A chargeable answer of a model server, and the route it came by. */
type Answering = {
  operation: Operation;
  detail: Detail;
  route: Route;
  reply: Exclude<Reply, Silent>;
  /** When the model server was asked (`performance.now()`). */
  began: number;
};
type Silent = { kind: 'refused' | 'unknown' };

/**
 * Runs one metered request to a model: holds the bound, asks the routes in order, and settles what `take` makes of the
 * answer. Throws `unsupported_parameter`, `idempotency_key_expired`, `answer_lost`, `operation_uncertain`, definite
 * refusals of the model server, and PAID_REFUSALS.
 */
export function spendOnModel<A extends Buffer | null>(
  app: ChatApp,
  { prepare, maxPrice, place, ...request }: ChatRequest,
  stream: boolean,
  take: (answering: Answering) => Called<A> | Promise<Called<A>>,
): Promise<Answered<A>> {
  const keptSeconds = () => place?.keptSeconds() ?? (request.isKeyMadeUp ? 0 : ANSWER_KEPT_SECONDS);
  const answered = spend<Detail, A, ChatTerms>(
    app,
    { ...request, kind: 'chat' },
    {
      writes: chatWrites,
      quote: (earlier) => quoteChat(prepare(), app.upstreams, keptSeconds, maxPrice, earlier),
      isCovered: (earlier, { hold, detail }) =>
        hold <= earlier.hold && earlier.price.startsWith(detail.model.priceText),
      movedTo: (key) => place?.moveTo(key),
      async call(operation, { detail }) {
        const { route, reply, began } = await ask(app, operation, detail, stream);
        if (stream) detail.bounded.release();
        if (reply.kind === 'refused' || reply.kind === 'unknown' || (reply.kind === 'streaming' && !stream))
          return { outcome: notDone(reply, detail, route), answer: unreachable };
        return take({ operation, detail, route, reply, began });
      },
      refuse: (operation, outcome) => refuse(app, operation, outcome),
      replay: (operation) => replay(app, operation) as A,
    },
  );
  return place ? place.follow(answered) : answered;
}

const unreachable = () => {
  throw new Error('only an outcome that is done has an answer');
};

/** Asks the routes in order. Any error on the way is an unknown outcome. */
async function ask(
  app: ChatApp,
  operation: Operation,
  { model, bounded, upstreams }: Detail,
  stream: boolean,
): Promise<{ route: Route; reply: Reply; began: number }> {
  const misconfigured = ({ upstream }: Route, { fault }: Refused) =>
    fault && app.events.misconfigured(operation, upstream, fault);
  try {
    const passedOver = (route: Route, refused: Refused) => {
      app.events.passedOver(operation, route.upstream, refused.reason);
      app.upstreamOutages.report(route.upstream, refused);
      misconfigured(route, refused);
    };
    const counted = (route: Route, reply: Reply, timing: Timing) =>
      app.events.upstreamCalled(operation, route, reply, stream, timing);
    const asked = { upstreams, circuits: app.circuits };
    const called = await callInOrder(asked, model, bounded, operation.id, stream, passedOver, counted);
    app.upstreamOutages.report(called.route.upstream, called.reply);
    if (called.reply.kind === 'refused') misconfigured(called.route, called.reply);
    return called;
  } catch (cause) {
    const reason = `the call ended without an answer: ${(cause as Error).message}`;
    return { route: model.routes[0], reply: { kind: 'unknown', reason }, began: performance.now() };
  }
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
    ...(model.routes.length > 1 ? { upstream: route.upstream } : {}),
  };
}

/** The refusal that the caller gets once the outcome is on disk. */
function refuse(app: ChatApp, { id }: Operation, outcome: NotDone): Refusal {
  const operation = operationOf(app.ledger.read, id);
  if (outcome.kind === 'unknown') return uncertainChat(app, operation);
  if (operation.outcome === 'released') return refusedOutside(outcome);
  // A retry was refused that took over the hold of an earlier attempt, of which this says nothing.
  const reason = outcome.reason.replace(' Nothing was charged.', '').replace(/[^.!?]$/, '$&.');
  return refusedOutside({ ...outcome, reason: `${reason} ${moneyOf('the earlier attempt', app, operation)}` });
}

/** Returns the stored answer of an operation that is no longer running. Throws a refusal if there is none. */
function replay(app: ChatApp, operation: Operation): Buffer {
  if (operation.state !== 'settled') throw uncertainChat(app, operation);
  const answer = findAnswer(app.ledger.read, operation.id, app.clock.now());
  if (answer) return answer;
  // A complete answer settles without a reason, so it was stored and has expired.
  if (operation.settledBy === 'answer' && operation.reason === null) throw new Refusal('idempotency_key_expired');
  throw lost(operation.charge as Nanos);
}

/** Returns the refusal for an answer that was charged but never arrived completely. */
export function lost(charge: Nanos): Refusal {
  return new Refusal(
    'answer_lost',
    `The answer to this request was lost and ${formatUsd(charge)} USD were charged for it. That is final; ${NEW_KEY}`,
  );
}

/** Returns the refusal for an unknown outcome: says what will happen to the hold, and when. */
function uncertainChat(app: Pick<ChatApp, 'config'>, operation: Operation): Refusal {
  return new Refusal(
    'operation_uncertain',
    `The outcome is not known: the model server may have done the work. ${moneyOf('it', app, operation)} ${RETRY_SAME_KEY}`,
    { retryAfterSeconds: UNCERTAIN_RETRY_SECONDS },
  );
}

/**
 * Says what is held for `what`, whose outcome is not known, and what will happen to it; or what a policy or the operator has
 * charged for it.
 */
function moneyOf(what: string, { config }: Pick<ChatApp, 'config'>, operation: Operation): string {
  if (operation.outcome === 'charged') return `${formatUsd(operation.charge as Nanos)} USD were charged for ${what}.`;
  const { after_seconds: seconds, policy } = uncertainPolicyOf(config.router, operation);
  const end = policy === 'charge' ? 'charged' : 'given back';
  return `The ${formatUsd(operation.hold)} USD held for ${what} are ${end} after ${seconds} s, or when the wallet is closed, unless the operator decides before that.`;
}
