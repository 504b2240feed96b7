import { findAnswer, type Operation, type Outcome, settle } from '../ledger/operation.ts';
import { available } from '../ledger/wallet.ts';
import { formatUsd, Nanos } from '../money.ts';
import { Refusal } from '../refusal.ts';
import type { Bounded } from '../router/bound.ts';
import { callInOrder } from '../router/call.ts';
import type { Catalogue, Model, Route } from '../router/catalogue.ts';
import { affordableCompletion, costOf, holdOf } from '../router/price.ts';
import type { Reply, Upstream } from '../router/upstream.ts';
import { describeUsage, readUsage } from '../router/usage.ts';
import { type LearnApp, learnBound } from './learn.ts';
import { type Answered, type PaidRequest, type Quote, type RoadApp, spend, uncertain, writeOutcome } from './road.ts';
import type { GiveUp } from './running.ts';

export type ChatApp = RoadApp & { catalogue: Catalogue; upstreams: ReadonlyMap<string, Upstream> };
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
      quote: () => quoteChat(prepare(), keep, maxPrice),
      finish: (operation, { detail }, giveUp) => finish(app, operation, detail, giveUp),
      replay: (operation) => replayChat(app, operation),
    },
  );
}

/** Holds the dearest of the model's routes: any of them may be the one that answers. */
export function quoteChat(
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
  if (reply.kind !== 'answered') return settleChat(app, operation, noAnswer(reply), giveUp);
  const charged = charge(app, operation, detail, route, reply.json);
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
  try {
    return await callInOrder(app.upstreams, model, bounded, operation.id, stream, (route, { reason }) =>
      app.events.passedOver(operation, route.upstream, reason),
    );
  } catch (cause) {
    const reason = `the call ended without an answer: ${(cause as Error).message}`;
    return { route: model.routes[0], reply: { kind: 'unknown', reason } };
  }
}

/** A reply that cannot be charged, as the outcome that it is. */
export function noAnswer(reply: Reply): Exclude<Outcome<never>, { kind: 'done' }> {
  if (reply.kind === 'refused') {
    const { elsewhere: _, ...outcome } = reply;
    return outcome;
  }
  return {
    kind: 'unknown',
    reason: reply.kind === 'unknown' ? reply.reason : 'a stream came where none was asked for',
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
  if (!moved) throw uncertain();
  if (outcome.kind === 'done') return undefined as never;
  if (outcome.kind === 'unknown') {
    app.wakeAt(now);
    throw uncertain();
  }
  const { code, reason, retryAfterSeconds } = outcome;
  throw new Refusal(code, reason, retryAfterSeconds === undefined ? {} : { retryAfterSeconds });
}

/** What the answer costs by its usage: never above the hold, and the whole hold when it does not say. */
export function charge(
  app: LearnApp,
  operation: Operation,
  { model, bounded }: Detail,
  route: Route,
  answer: unknown,
): { charge: Nanos; usage: string | null } {
  const usage = readUsage(answer, model.kind);
  if (!usage) return { charge: operation.hold, usage: null };
  const { promptTokens, completionTokens, images } = bounded.most(route);
  const counted = describeUsage(usage, images, model.routes.length > 1 ? route.upstream : undefined);
  // A count above its bound says that the bound is none, whatever the sum comes to: tokens_per_byte is wrong.
  const isAbove = usage.promptTokens > promptTokens || usage.completionTokens > completionTokens;
  if (isAbove) app.events.boundExceeded(operation, counted);
  if (usage.promptTokens > promptTokens) learnBound(app, operation, route, usage.promptTokens, promptTokens);
  const cost = costOf(route.price, usage, images);
  return { charge: isAbove || cost > operation.hold ? operation.hold : Nanos(cost), usage: counted };
}

/** The stored answer of an operation that is not running any more. */
export function replayChat(app: ChatApp, operation: Operation): Buffer {
  if (operation.state !== 'settled') throw uncertain();
  const answer = findAnswer(app.ledger.read, operation.id, app.clock.now());
  if (answer) return answer;
  if (operation.settledBy === 'answer') throw new Refusal('idempotency_key_expired');
  throw new Refusal(
    'answer_lost',
    `The answer to this request was lost and ${formatUsd(operation.charge as Nanos)} USD were charged for it. That is final; a new key is safe now.`,
  );
}
