import type { Events } from '../events.ts';
import { findAnswer, type Operation, type Outcome, settle } from '../ledger/operation.ts';
import { formatUsd, Nanos } from '../money.ts';
import { Refusal } from '../refusal.ts';
import { type Bounded, bound, type ChatBody } from '../router/bound.ts';
import type { Catalogue, Model } from '../router/catalogue.ts';
import { affordableCompletion, priceOf, priceSnapshot, rawPriceOf, readUsage } from '../router/price.ts';
import type { Upstream } from '../router/upstream.ts';
import { type Answered, type PaidRequest, type Quote, type RoadApp, spend, uncertain, writeOutcome } from './road.ts';
import type { GiveUp } from './running.ts';

export type ChatApp = RoadApp & { catalogue: Catalogue; upstreams: ReadonlyMap<string, Upstream> };
export type ChatRequest = Omit<PaidRequest, 'kind'> & { body: ChatBody };
type Detail = { model: Model; bounded: Bounded };

/**
 * One metered chat completion: hold the bound, ask the upstream once, settle by its usage (design, section 8). Answers
 * the upstream's body unchanged. Refusals: `model_not_found`, `unsupported_parameter`, `idempotency_key_expired`,
 * `answer_lost`, `operation_uncertain`, and those of the road.
 */
export function chat(app: ChatApp, { body, ...request }: ChatRequest): Promise<Answered<Buffer>> {
  return spend<Detail, Buffer>(
    app,
    { ...request, kind: 'chat' },
    {
      quote: () => quote(app, body),
      finish: (operation, { detail }, giveUp) => finish(app, operation, detail, giveUp),
      replay: (operation) => replay(app, operation),
    },
  );
}

function quote(app: ChatApp, body: ChatBody): Quote<Detail> {
  const model = app.catalogue.find(body.model);
  const bounded = bound(model, body);
  const { promptTokens, completionTokens, choices } = bounded;
  return {
    hold: priceOf(model.price, promptTokens, completionTokens),
    price: priceSnapshot(model.price, bounded),
    subject: model.id,
    detail: { model, bounded },
    advice(left) {
      const fits = Math.floor(affordableCompletion(model.price, promptTokens, left) / choices);
      const asked = `It asked for up to ${completionTokens / choices} output tokens`;
      return fits >= 1
        ? `${asked}; with max_tokens ${fits} it would fit.`
        : `${asked}; no max_tokens would make it fit.`;
    },
  };
}

async function finish(app: ChatApp, operation: Operation, detail: Detail, giveUp: GiveUp): Promise<Buffer> {
  let outcome: Outcome<Buffer>;
  try {
    outcome = await call(app, operation, detail);
  } catch (cause) {
    outcome = { kind: 'unknown', reason: `the call ended without an answer: ${(cause as Error).message}` };
  }

  const now = app.clock.now();
  const moved = await writeOutcome(app, (tx) => settle(tx, operation.id, outcome, 'answer', now), giveUp);
  app.events.settled(operation, outcome, moved);
  if (!moved) throw uncertain();
  if (outcome.kind === 'done') return outcome.answer;
  if (outcome.kind === 'unknown') {
    app.wakeAt(now);
    throw uncertain();
  }
  const { code, reason, retryAfterSeconds } = outcome;
  throw new Refusal(code, reason, retryAfterSeconds === undefined ? {} : { retryAfterSeconds });
}

async function call(app: ChatApp, operation: Operation, { model, bounded }: Detail): Promise<Outcome<Buffer>> {
  const upstream = app.upstreams.get(model.upstream);
  if (!upstream) throw new Error(`no upstream ${model.upstream}`);
  const reply = await upstream.chat(bounded.body, operation.id);
  if (reply.kind !== 'answered') return reply;
  return { kind: 'done', ...charge(app.events, operation, model, bounded, reply.json), answer: reply.body };
}

/** What the answer costs by its usage: never above the hold, and the whole hold when it does not say. */
function charge(
  events: Events,
  operation: Operation,
  model: Model,
  bounded: Bounded,
  answer: unknown,
): Pick<Outcome<never> & { kind: 'done' }, 'charge' | 'usage'> {
  const usage = readUsage(answer);
  if (!usage) return { charge: operation.hold, usage: null };
  const counted = JSON.stringify({ prompt_tokens: usage.promptTokens, completion_tokens: usage.completionTokens });
  // A count above its bound says that the bound is none, whatever the sum comes to: tokens_per_byte is wrong.
  const isAbove = usage.promptTokens > bounded.promptTokens || usage.completionTokens > bounded.completionTokens;
  if (isAbove) events.boundExceeded(operation, counted);
  const cost = rawPriceOf(model.price, usage.promptTokens, usage.completionTokens);
  return { charge: isAbove || cost > operation.hold ? operation.hold : Nanos(cost), usage: counted };
}

function replay(app: ChatApp, operation: Operation): Buffer {
  if (operation.state !== 'settled') throw uncertain();
  const answer = findAnswer(app.ledger.read, operation.id, app.clock.now());
  if (answer) return answer;
  if (operation.settledBy === 'answer') throw new Refusal('idempotency_key_expired');
  throw new Refusal(
    'answer_lost',
    `The answer to this request was lost and ${formatUsd(operation.charge as Nanos)} USD were charged for it. That is final; a new key is safe now.`,
  );
}
