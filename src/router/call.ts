import type { AnswerReader } from './apart.ts';
import type { Bounded } from './bound.ts';
import type { Route } from './catalogue.ts';
import type { Pass } from './circuit.ts';
import type { Refused, Reply } from './reply.ts';
import type { Upstream } from './upstream.ts';

/** The times of a call: to its end or the first event of its stream, and to the first byte of its answer. */
export type Timing = { seconds: number; firstByteSeconds: number | undefined };

/** Returns the seconds since a moment of `performance.now()`. */
export const secondsSince = (began: number): number => (performance.now() - began) / 1000;

/**
 * Asks the routes of a request in order, once each. Moves on only after a definite refusal that is not about the request itself,
 * never after an unknown outcome. A route whose circuit is open, or whose upstream has no free permit, refuses without being asked.
 * Returns the reply that counts, its route, and the time of its call (`performance.now()`). Calls `called` for each upstream that
 * was asked, and `skipped` for each route skipped. `cancelOf` returns the signal that ends a route's call for a stream.
 */
export async function callInOrder(
  {
    upstreams,
    routes,
    pass,
    reader,
  }: { upstreams: ReadonlyMap<string, Upstream>; routes: readonly Route[]; pass: Pass; reader: AnswerReader },
  bounded: Bounded,
  operationId: string,
  stream: boolean,
  skipped: (route: Route, refused: Refused) => void,
  called: (route: Route, reply: Reply, timing: Timing) => void = () => {},
  cancelOf: (route: Route) => AbortSignal | undefined = () => undefined,
): Promise<{ route: Route; reply: Reply; began: number }> {
  const last = routes.at(-1) as Route;
  for (const route of routes) {
    const upstream = upstreams.get(route.upstream);
    if (!upstream) throw new Error(`no upstream ${route.upstream}`);
    const began = performance.now();
    let firstByteSeconds: number | undefined;
    const onFirstByte = () => {
      firstByteSeconds ??= secondsSince(began);
    };
    let wasCalled = false;
    const reply = await pass.ask(route, (onEnd) => {
      wasCalled = true;
      return upstream.ask(
        { ...bounded.requestFor(route), reader },
        operationId,
        stream,
        onFirstByte,
        onEnd,
        cancelOf(route),
      );
    });
    if (wasCalled) called(route, reply, { seconds: secondsSince(began), firstByteSeconds });
    if (reply.kind !== 'refused' || !reply.elsewhere || route === last) return { route, reply, began };
    skipped(route, reply);
  }
  throw new Error('a request has at least one route');
}
