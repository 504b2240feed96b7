import { type FakeUpstream, failure, halfBody, reset } from '../helper/upstream.ts';

/** What the model server knows: how often it refused each operation and took it on, and which ones it answered. */
export type Chaos = { seen: Map<string, { refused: number; taken: number }>; answered: Set<string> };

const REFUSALS = [failure(429), failure(500), failure(502)];
const FAULTS = [...REFUSALS, reset, halfBody];
const LATE_MILLISECONDS_MAX = 150;

/** Makes an upstream answer most calls at once, some late, and some with an error, a reset or half a body. */
export function unleash(upstream: FakeUpstream, random: () => number): Chaos {
  const chaos: Chaos = { seen: new Map(), answered: new Set() };
  upstream.handle = async (call, response) => {
    const operationId = String(call.headers['idempotency-key']);
    const seen = chaos.seen.get(operationId) ?? { refused: 0, taken: 0 };
    chaos.seen.set(operationId, seen);
    const fate = random();
    const fault = fate < 0.15 ? FAULTS[Math.floor(random() * FAULTS.length)] : undefined;
    seen[fault && REFUSALS.includes(fault) ? 'refused' : 'taken']++;
    if (fault) return fault(call, response);
    if (fate < 0.3) await new Promise((resolve) => setTimeout(resolve, random() * LATE_MILLISECONDS_MAX));
    chaos.answered.add(operationId);
    response.writeHead(200, { 'content-type': 'application/json' });
    // The answer carries the operation's id: so the client learns which operation it was charged for.
    response.end(
      JSON.stringify({
        id: operationId,
        object: 'chat.completion',
        model: call.body.model,
        choices: [{ index: 0, message: { role: 'assistant', content: 'hello' }, finish_reason: 'stop' }],
        usage: { prompt_tokens: 1 + Math.floor(random() * 20), completion_tokens: 1 + Math.floor(random() * 100) },
      }),
    );
  };
  return chaos;
}
