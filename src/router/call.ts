import type { Bounded } from './bound.ts';
import type { Model, Route } from './catalogue.ts';
import type { Refused, Reply, Upstream, UpstreamPath } from './upstream.ts';

const PATHS: Record<Model['kind'], UpstreamPath> = { chat: 'chat/completions', embeddings: 'embeddings' };

/**
 * Asks the routes of a model in order, once each. Moves on only after a definite refusal that is not about the request
 * itself, never after an unknown outcome. Returns the reply that counts and its route. Calls `passedOver` for each
 * route skipped.
 */
export async function callInOrder(
  upstreams: ReadonlyMap<string, Upstream>,
  model: Model,
  bounded: Bounded,
  operationId: string,
  stream: boolean,
  passedOver: (route: Route, refused: Refused) => void,
): Promise<{ route: Route; reply: Reply }> {
  const last = model.routes.at(-1) as Route;
  for (const route of model.routes) {
    const upstream = upstreams.get(route.upstream);
    if (!upstream) throw new Error(`no upstream ${route.upstream}`);
    const reply = await upstream.ask(PATHS[model.kind], bounded.bodyFor(route), operationId, stream);
    if (reply.kind !== 'refused' || !reply.elsewhere || route === last) return { route, reply };
    passedOver(route, reply);
  }
  throw new Error('a model has at least one route');
}
