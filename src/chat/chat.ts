import type { Answered } from '../spend/spend.ts';
import { charge, sizeOf } from './charge.ts';
import { spendOnModel } from './metered.ts';
import type { ChatApp, ChatRequest } from './quote.ts';

/**
 * Runs one metered request to a model and returns the upstream's body unchanged, in one piece. Throws as `spendOnModel`
 * does.
 */
export function chat(app: ChatApp, request: ChatRequest): Promise<Answered<Buffer>> {
  const { claim } = request;
  return spendOnModel(app, request, false, ({ operation, detail, route, reply }) => {
    if (reply.kind !== 'answered') throw new Error('a stream is not asked for here');
    const charged = charge(app, operation, detail, route, sizeOf(reply.data));
    claim?.offer(() => reply.body);
    const kept = detail.keep(() => reply.body);
    return { outcome: { kind: 'done', ...charged, ...kept }, answer: () => reply.body };
  });
}
