import { Nanos } from '../base/money.ts';
import type { Operation } from '../ledger/operation.ts';
import type { Route } from '../router/catalogue.ts';
import { costOf } from '../router/price.ts';
import type { Heard } from '../router/stream-reader.ts';
import type { ToldAnswer } from '../router/told.ts';
import { describeUsage, toldIn, type Usage } from '../router/usage.ts';
import { type LearnApp, learnBound } from './learn.ts';
import type { Detail } from './quote.ts';

/** The size of an answer: its reported counts, and a bound on the tokens that arrived. */
export type Size = Pick<Heard, 'counts' | 'isCounted' | 'tokensDelivered'>;

/** Returns the size of a complete answer. */
export const sizeOf = ({ usage, generatedBytes }: ToldAnswer): Size => ({
  counts: usage,
  isCounted: true,
  tokensDelivered: generatedBytes,
});

/**
 * Returns the charge for an answer by its usage, and the usage as text. Reported counts are charged as reported. Only
 * missing ones are estimated, and never too low: the prompt at its bound, and the completion, if it was not counted at its
 * end, by the delivered text. The charge is never above the hold (design, section 8). Emits the events of the charge, and
 * learns from counts of the prompt.
 */
export function charge(
  app: LearnApp,
  operation: Operation,
  { model, bounded }: Detail,
  route: Route,
  { counts, isCounted, tokensDelivered }: Size,
): { charge: Nanos; usage: string } {
  const max = bounded.maxUsage(route);
  const { images } = max;
  const told = toldIn(counts, bounded.apiOf(route), max.promptTokens);
  // A server that does not know the count yet reports 0 at the beginning; no prompt has 0 tokens.
  const isPromptTold = told.promptTokens !== undefined && (isCounted || told.promptTokens > 0);
  const isAnswerTold = isCounted && told.completionTokens !== undefined;
  const usage: Usage = {
    ...told,
    // An upstream that does not report how long it caches written tokens caches them for the requested time.
    cacheWriteHourTokens: told.cacheWriteHourTokens ?? (max.isCachedForHour ? told.cacheWriteTokens : 0),
    promptTokens: isPromptTold ? (told.promptTokens as number) : max.promptTokens,
    completionTokens: isAnswerTold
      ? (told.completionTokens as number)
      : Math.max(told.completionTokens ?? 0, Math.min(tokensDelivered, max.completionTokens)),
  };
  const isEstimated = !isPromptTold || !isAnswerTold;
  const upstream = model.routes.length > 1 ? route.upstream : undefined;
  const described = describeUsage(usage, { images, upstream, estimated: isEstimated });
  if (isEstimated) app.events.estimated(operation, described);
  app.events.charged(model.id, route.upstream, usage);
  // A count above its bound means that the bound is wrong, whatever the total. It never raises the bill.
  if (usage.promptTokens > max.promptTokens || usage.completionTokens > max.completionTokens)
    app.events.boundExceeded(operation, described);
  if (isPromptTold) learnBound(app, operation, route, bounded, usage.promptTokens, max.promptTokens);
  const estimated = { isPrompt: !isPromptTold, isCompletion: !isAnswerTold, isCachedForHour: max.isCachedForHour };
  return { charge: atMost(costOf(route.price, usage, images, estimated), operation.hold), usage: described };
}

const atMost = (cost: bigint, hold: Nanos): Nanos => (cost > hold ? hold : Nanos(cost));
