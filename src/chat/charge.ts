import type { Operation } from '../ledger/operation.ts';
import { Nanos } from '../money.ts';
import type { Route } from '../router/catalogue.ts';
import { costOf, holdOf } from '../router/price.ts';
import { describeUsage, type Usage } from '../router/usage.ts';
import { type LearnApp, learnBound } from './learn.ts';
import type { Detail } from './quote.ts';

/**
 * Returns the charge for an answer by its usage, and the usage as text. Without readable usage the charge is an estimate
 * that is never too low: the prompt's bound and `tokensDelivered`, an upper bound. The charge is never above the hold
 * (design, section 8). Emits the events of the charge, and learns from a count of the prompt above its bound.
 */
export function charge(
  app: LearnApp,
  operation: Operation,
  { model, bounded }: Detail,
  route: Route,
  counted: Usage | undefined,
  tokensDelivered: number,
): { charge: Nanos; usage: string } {
  const max = bounded.maxUsage(route);
  const { promptTokens, images } = max;
  const upstream = model.routes.length > 1 ? route.upstream : undefined;
  if (!counted) {
    const completionTokens = Math.min(tokensDelivered, max.completionTokens);
    const cost = holdOf(route.price, { ...max, completionTokens });
    const counts = { promptTokens, completionTokens, cacheReadTokens: 0, cacheWriteTokens: 0, reasoningTokens: 0 };
    const estimate = describeUsage(counts, { images, upstream, estimated: true });
    app.events.estimated(operation, estimate);
    app.events.charged(model.id, route.upstream, counts);
    return { charge: atMost(cost, operation.hold), usage: estimate };
  }
  // An upstream that does not say how long it caches written tokens caches them as long as the request asked for.
  const hour = counted.cacheWriteHourTokens ?? (max.isCachedForHour ? counted.cacheWriteTokens : 0);
  const usage = { ...counted, cacheWriteHourTokens: hour };
  app.events.charged(model.id, route.upstream, usage);
  const described = describeUsage(usage, { images, upstream });
  // A count above its bound means that the bound is wrong, whatever the total. It never raises the bill.
  if (usage.promptTokens > promptTokens || usage.completionTokens > max.completionTokens)
    app.events.boundExceeded(operation, described);
  if (usage.promptTokens > promptTokens) learnBound(app, operation, route, bounded, usage.promptTokens, promptTokens);
  return { charge: atMost(costOf(route.price, usage, images), operation.hold), usage: described };
}

const atMost = (cost: bigint, hold: Nanos): Nanos => (cost > hold ? hold : Nanos(cost));
