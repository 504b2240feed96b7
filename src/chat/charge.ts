import type { Operation } from '../ledger/operation.ts';
import { Nanos } from '../money.ts';
import type { Route } from '../router/catalogue.ts';
import { costOf, holdOf } from '../router/price.ts';
import { describeUsage, type Usage } from '../router/usage.ts';
import { type LearnApp, learnBound } from './learn.ts';
import type { Detail } from './quote.ts';

/**
 * Charges an answer by its usage. Where there is none that can be read it is an estimate that is never too low: the bound
 * of the prompt and `tokensDelivered`. Never above the hold (design, section 8).
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
  if (usage.promptTokens > promptTokens) learnBound(app, operation, route, bounded, usage.promptTokens, promptTokens);
  return { charge: atMost(costOf(route.price, usage, images), operation.hold), usage: counted };
}

const atMost = (cost: bigint, hold: Nanos): Nanos => (cost > hold ? hold : Nanos(cost));
