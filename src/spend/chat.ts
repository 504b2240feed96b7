import type { Config } from '../config.ts';
import { findAnswer, type Operation, type Outcome, operationOf, settle } from '../ledger/operation.ts';
import { available } from '../ledger/wallet.ts';
import { formatUsd, Nanos } from '../money.ts';
import { RETRY_SAME_KEY, Refusal } from '../refusal.ts';
import type { Bounded } from '../router/bound.ts';
import { callInOrder } from '../router/call.ts';
import type { Catalogue, Model, Route } from '../router/catalogue.ts';
import { generatedBytes } from '../router/generated.ts';
import { affordableCompletion, costOf, holdOf } from '../router/price.ts';
import { uncertainPolicyOf } from '../router/uncertain.ts';
import type { Refused, Reply, Upstream } from '../router/upstream.ts';
import { describeUsage, readUsage, type Usage } from '../router/usage.ts';
import { type LearnApp, learnBound } from './learn.ts';
import {
  type Answered,
  type PaidRequest,
  type Quote,
  type RoadApp,
  spend,
  UNCERTAIN_RETRY_SECONDS,
  writeOutcome,
} from './road.ts';
import type { GiveUp } from './running.ts';

export type ChatApp = RoadApp & {
  catalogue: Catalogue;
  upstreams: ReadonlyMap<string, Upstream>;
  config: Pick<Config, 'router'>;
};
export type ChatRequest = Omit<PaidRequest, 'kind'> & {
  /** Finds the model and bounds the request; refuses what is not offered, malformed or not priced. Not asked for a replay. */
  prepare: () => { model: Model; bounded: Bounded };
  /** The most that one request may cost, where the caller's key has such a limit. */
  maxPrice?: Nanos | undefined;
  /** Whether the answer is kept for replays: a key that was made up for one request is never sent again. */
  keep?: boolean;
};
export type Detail = ReturnType<ChatRequest['prepare']> & { keep: boolean };

/**
 * One metered request to a model: hold the bound, ask upstream, settle by the usage (design, section 8). Answers the
 * upstream's body unchanged. Refusals: `unsupported_parameter`, `idempotency_key_expired`, `answer_lost`,
 * `operation_uncertain`, what the upstream clearly refused with, and those of the road.
 */
export function chat(
  app: ChatApp,
  { prepare, maxPrice, keep = true, ...request }: ChatRequest,
): Promise<Answered<Buffer>> {
  return spend<Detail, Buffer>(
    app,
    { ...request, kind: 'chat' },
    {
      quote: () => quoteChat(app, prepare(), keep, maxPrice),
      finish: (operation, { detail }, giveUp) => finish(app, operation, detail, giveUp),
      replay: (operation) => replayChat(app, operation),
    },
  );
}

/** Holds the dearest of the model's routes: any of them may be the one that answers. */
export function quoteChat(
  { limits }: Pick<ChatApp, 'limits'>,
  { model, bounded }: ReturnType<ChatRequest['prepare']>,
  keep: boolean,
  maxPrice: Nanos | undefined,
): Quote<Detail> {
  const { choices, reducible } = bounded;
  const order = () => {
    const { hold, most } = model.routes
      .map((route) => ({ most: bounded.most(route), hold: holdOf(route.price, bounded.most(route)) }))
      .reduce((dearest, it) => (it.hold > dearest.hold ? it : dearest));
    const bounds = `"bound_prompt_tokens":${most.promptTokens},"bound_completion_tokens":${most.completionTokens}`;
    return { hold, price: `${model.priceText},${bounds}}`, outputTokens: most.completionTokens / choices };
  };
  // With fewer output tokens another route may be the dearest: it has to fit all of them.
  const affordable = (left: Nanos) =>
    Math.min(
      ...model.routes.map((route) =>
        Math.floor(affordableCompletion(route.price, bounded.most(route), left) / choices),
      ),
    );
  const reduce = (left: Nanos) => {
    const fits = affordable(left);
    if (!reducible || fits < reducible.outputTokensMin || fits >= reducible.outputTokens) return undefined;
    bounded.reduceTo(fits);
    return order();
  };
  let { hold, price, outputTokens } = order();
  if (maxPrice !== undefined && hold > maxPrice) ({ hold, price, outputTokens } = reduce(maxPrice) ?? order());
  const advice = (left: Nanos) => {
    if (model.kind !== 'chat') return '';
    const fits = affordable(left);
    const asked = `It asked for up to ${outputTokens} output tokens`;
    return fits >= 1 ? `${asked}; with max_tokens ${fits} it would fit.` : `${asked}; no max_tokens would make it fit.`;
  };
  return {
    hold,
    price,
    subject: model.id,
    detail: { model, bounded, keep },
    advice,
    reduce,
    limits(_, wallet) {
      limits.released.check(wallet.id);
      if (maxPrice === undefined || hold <= maxPrice) return;
      const left = available(wallet);
      throw new Refusal(
        'insufficient_funds',
        `This request needs ${formatUsd(hold)} USD at most, and this gateway key allows ${formatUsd(maxPrice)} USD for one request. ${advice(left < maxPrice ? left : maxPrice)}`.trim(),
      );
    },
  };
}

async function finish(app: ChatApp, operation: Operation, detail: Detail, giveUp: GiveUp): Promise<Buffer> {
  const { route, reply } = await call(app, operation, detail, false);
  if (reply.kind !== 'answered') return settleChat(app, operation, noAnswer(reply, detail, route), giveUp);
  const usage = readUsage(reply.json, detail.model.kind);
  const charged = charge(app, operation, detail, route, usage, usage ? 0 : generatedBytes(reply.json));
  await settleChat(app, operation, { kind: 'done', ...charged, answer: detail.keep ? reply.body : null }, giveUp);
  return reply.body;
}

/** Asks upstream; whatever goes wrong on the way is an outcome that nobody knows. */
export async function call(
  app: ChatApp,
  operation: Operation,
  { model, bounded }: Detail,
  stream: boolean,
): Promise<{ route: Route; reply: Reply }> {
  const misconfigured = ({ fault }: Refused) => fault && app.events.misconfigured(operation, fault);
  try {
    const called = await callInOrder(app.upstreams, model, bounded, operation.id, stream, (route, refused) => {
      app.events.passedOver(operation, route.upstream, refused.reason);
      misconfigured(refused);
    });
    if (called.reply.kind === 'refused') misconfigured(called.reply);
    return called;
  } catch (cause) {
    const reason = `the call ended without an answer: ${(cause as Error).message}`;
    return { route: model.routes[0], reply: { kind: 'unknown', reason } };
  }
}

/** A reply that cannot be charged, as the outcome that it is. */
export function noAnswer(
  reply: Reply,
  { model }: Pick<Detail, 'model'>,
  route: Route,
): Exclude<Outcome<never>, { kind: 'done' }> {
  if (reply.kind === 'refused') {
    const { elsewhere: _, fault: __, ...outcome } = reply;
    return outcome;
  }
  return {
    kind: 'unknown',
    reason: reply.kind === 'unknown' ? reply.reason : 'a stream came where none was asked for',
    ...(model.routes.length > 1 ? { upstream: route.upstream } : {}),
  };
}

/** Writes the outcome. Throws what the caller is told where it is not `done`. */
export async function settleChat<O extends Outcome<Buffer | null>>(
  app: ChatApp,
  operation: Operation,
  outcome: O,
  giveUp: GiveUp,
): Promise<O extends { kind: 'done' } ? void : never> {
  const now = app.clock.now();
  const moved = await writeOutcome(app, (tx) => settle(tx, operation.id, outcome, 'answer', now), giveUp);
  app.events.settled(operation, outcome, moved);
  if (!moved) throw uncertainChat(app, operationOf(app.ledger.read, operation.id));
  if (outcome.kind === 'done') return undefined as never;
  if (outcome.kind === 'unknown') {
    app.wakeAt(now);
    throw uncertainChat(app, operationOf(app.ledger.read, operation.id));
  }
  app.limits.released.count(operation.walletId);
  const { code, reason, retryAfterSeconds } = outcome;
  throw new Refusal(code, reason, retryAfterSeconds === undefined ? {} : { retryAfterSeconds });
}

/**
 * What an answer costs: by its usage, or where there is none that can be read by an estimate that is never too low, the
 * bound of the prompt and `tokensDelivered`. Never above the hold (design, section 8).
 */
export function charge(
  app: LearnApp,
  operation: Operation,
  { model, bounded }: Detail,
  route: Route,
  usage: Usage | undefined,
  tokensDelivered: number,
): { charge: Nanos; usage: string } {
  const most = bounded.most(route);
  const { promptTokens, images } = most;
  const upstream = model.routes.length > 1 ? route.upstream : undefined;
  if (!usage) {
    const completionTokens = Math.min(tokensDelivered, most.completionTokens);
    const cost = holdOf(route.price, { ...most, completionTokens });
    const counts = { promptTokens, completionTokens, cacheReadTokens: 0, cacheWriteTokens: 0, reasoningTokens: 0 };
    const estimate = describeUsage(counts, { images, upstream, estimated: true });
    app.events.estimated(operation, estimate);
    return { charge: atMost(cost, operation.hold), usage: estimate };
  }
  const counted = describeUsage(usage, { images, upstream });
  // A count above its bound says that the bound is none, whatever the sum comes to. It never raises the bill.
  if (usage.promptTokens > promptTokens || usage.completionTokens > most.completionTokens)
    app.events.boundExceeded(operation, counted);
  if (usage.promptTokens > promptTokens) learnBound(app, operation, route, usage.promptTokens, promptTokens);
  return { charge: atMost(costOf(route.price, usage, images), operation.hold), usage: counted };
}

const atMost = (cost: bigint, hold: Nanos): Nanos => (cost > hold ? hold : Nanos(cost));

/** The stored answer of an operation that is not running any more. */
export function replayChat(app: ChatApp, operation: Operation): Buffer {
  if (operation.state !== 'settled') throw uncertainChat(app, operation);
  const answer = findAnswer(app.ledger.read, operation.id, app.clock.now());
  if (answer) return answer;
  // Of an answer that came whole there is no reason to tell: it is only not kept any more.
  if (operation.settledBy === 'answer' && operation.reason === null) throw new Refusal('idempotency_key_expired');
  throw lost(operation.charge as Nanos);
}

/** An answer that never came whole, or at all, and was charged. */
export function lost(charge: Nanos): Refusal {
  return new Refusal(
    'answer_lost',
    `The answer to this request was lost and ${formatUsd(charge)} USD were charged for it. That is final; a new key is safe now.`,
  );
}

/** Nobody knows the outcome of this request: says what becomes of its hold, and when. */
function uncertainChat(app: Pick<ChatApp, 'config'>, operation: Operation): Refusal {
  const { after_seconds: seconds, policy } = uncertainPolicyOf(app.config.router, operation);
  const end = policy === 'charge' ? 'charged' : 'given back';
  return new Refusal(
    'operation_uncertain',
    `The outcome is not known: the model server may have done the work. The ${formatUsd(operation.hold)} USD held for it are ${end} after ${seconds} s, or when the wallet is closed, unless the operator decides before that. ${RETRY_SAME_KEY}`,
    { retryAfterSeconds: UNCERTAIN_RETRY_SECONDS },
  );
}
