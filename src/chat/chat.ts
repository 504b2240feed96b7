import { isWire } from '../config/router.ts';
import { generatedBytes } from '../router/generated.ts';
import { generatedInAnswer } from '../router/native.ts';
import { readUsage } from '../router/usage.ts';
import type { Answered } from '../spend/spend.ts';
import { charge } from './charge.ts';
import { spendOnModel } from './metered.ts';
import type { ChatApp, ChatRequest } from './quote.ts';

/**
 * Runs one metered request to a model and returns the upstream's body unchanged, in one piece. Throws as `spendOnModel`
 * does.
 */
export function chat(app: ChatApp, request: ChatRequest): Promise<Answered<Buffer>> {
  const { place } = request;
  return spendOnModel(app, request, false, ({ operation, detail, route, reply }) => {
    if (reply.kind !== 'answered') throw new Error('a stream is not asked for here');
    const api = detail.bounded.apiOf(route);
    const usage = readUsage(reply.json, api);
    const delivered = isWire(api) ? generatedInAnswer : generatedBytes;
    const charged = charge(app, operation, detail, route, usage, usage ? 0 : delivered(reply.json));
    place?.offer(() => reply.body);
    const keptSeconds = detail.keptSeconds();
    const answer = keptSeconds ? reply.body : null;
    return { outcome: { kind: 'done', ...charged, answer, keptSeconds }, answer: () => reply.body };
  });
}
