import { Nanos } from '../base/money.ts';
import type { Operation } from '../ledger/operation.ts';
import type { AnswerData } from '../router/answer-data.ts';
import { type Route, routeNameOf } from '../router/catalogue.ts';
import { costOf } from '../router/price.ts';
import type { Heard } from '../router/stream-reader.ts';
import { describeUsage, type TokenUsage, usageIn } from '../router/usage.ts';
import { type LearnApp, learnBound } from './learn.ts';
import type { Detail } from './quote.ts';

/** The size of an answer: its reported counts, and a bound on the tokens that arrived. */
export type AnswerSize = Pick<Heard, 'counts' | 'isCounted' | 'tokensDelivered'>;

/** Returns the size of a complete answer. */
export const sizeOf = ({ usage, generatedBytes }: AnswerData): AnswerSize => ({
  counts: usage,
  isCounted: true,
  tokensDelivered: generatedBytes,
});

/**
 * Returns the charge for an answer by its usage, and the usage as text. Reported counts are charged as reported. Only missing ones
 * are estimated, and never too low: the prompt at its bound, the completion by the delivered text. The charge is never above the
 * hold (design, section 8). Emits the events of the charge, and learns from counts of the prompt.
 */
export function charge(
  app: LearnApp,
  operation: Operation,
  { model, bounded }: Detail,
  route: Route,
  { counts, isCounted, tokensDelivered }: AnswerSize,
): { charge: Nanos; usage: string } {
  const max = bounded.maxUsage(route);
  const { images } = max;
  const reported = usageIn(counts, bounded.apiOf(route), max.promptTokens);
  // A server that does not know the count yet reports 0 at the beginning; no prompt has 0 tokens.
  const isPromptReported = reported.promptTokens !== undefined && (isCounted || reported.promptTokens > 0);
  const isAnswerReported = isCounted && reported.completionTokens !== undefined;
  const usage: TokenUsage = {
    ...reported,
    // An upstream that does not report how long it caches written tokens caches them for the requested time.
    cacheWriteHourTokens: reported.cacheWriteHourTokens ?? (max.isCachedForHour ? reported.cacheWriteTokens : 0),
    promptTokens: isPromptReported ? (reported.promptTokens as number) : max.promptTokens,
    completionTokens: isAnswerReported
      ? (reported.completionTokens as number)
      : Math.max(reported.completionTokens ?? 0, Math.min(tokensDelivered, max.completionTokens)),
  };
  const isEstimated = !isPromptReported || !isAnswerReported;
  const described = describeUsage(usage, { images, name: routeNameOf(model, route), estimated: isEstimated });
  if (isEstimated) app.events.estimated(operation, described);
  app.events.charged(model.id, route.upstream, usage);
  // A count above its bound means that the bound is wrong, whatever the total. It never raises the bill.
  if (usage.promptTokens > max.promptTokens || usage.completionTokens > max.completionTokens)
    app.events.boundExceeded(operation, described);
  if (isPromptReported) learnBound(app, operation, route, bounded, usage.promptTokens, max.promptTokens);
  const estimated = {
    isPrompt: !isPromptReported,
    isCompletion: !isAnswerReported,
    isCachedForHour: max.isCachedForHour,
  };
  return { charge: atMost(costOf(route.price, usage, images, estimated), operation.hold), usage: described };
}

const atMost = (cost: bigint, hold: Nanos): Nanos => (cost > hold ? hold : Nanos(cost));
