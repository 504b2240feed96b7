import type { TestContext } from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { counted, DONE, event, streaming } from '../helper/sse.ts';
import type { Handler } from '../helper/upstream.ts';
import { vendorClients } from '../helper/vendor-clients.ts';

// Anthropic's Messages and OpenAI's Responses under the gateway's base URL: the vendors' own clients against the real
// server, and what the model server is asked.

/** Opens a server with a wallet, and the vendors’ clients for its gateway. */
export async function open(t: TestContext, options: TestServerOptions = {}, wallet: Record<string, unknown> = {}) {
  const purser = await openTestServer(t, options);
  const gateway = await openGateway(purser, { wallet });
  return {
    purser,
    gateway,
    ...vendorClients(purser.url, gateway.key),
  };
}

/** Returns the body of a call that the model server got. */
export const bodyOf = ({ upstream }: TestServer, at: number) => upstream.calls.at(at)?.body as any;

export const USAGE = {
  prompt_tokens: 100,
  completion_tokens: 20,
  total_tokens: 120,
  prompt_tokens_details: { cached_tokens: 60, cache_write_tokens: 10 },
  completion_tokens_details: { reasoning_tokens: 8 },
};
/** Returns a call of a function, as a message of a chat has it. */
export const call = (id: string, name: string, args: string) => ({
  id,
  type: 'function',
  function: { name, arguments: args },
});

/** Answers with one message, whole. */
export const answers =
  (message: object, finish_reason = 'stop', usage: object = USAGE): Handler =>
  ({ body }, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    const choices = [{ index: 0, message: { role: 'assistant', ...message }, finish_reason }];
    response.end(
      JSON.stringify({ id: 'chatcmpl-7', object: 'chat.completion', created: 7, model: body.model, choices, usage }),
    );
  };

const head = { id: 'chatcmpl-7', object: 'chat.completion.chunk', created: 7, model: 'real/chat' };
/** Returns a chunk of a stream. */
export const delta = (it: object, finish_reason: string | null = null) =>
  event({ ...head, choices: [{ index: 0, delta: it, finish_reason }] });
/** Returns a chunk with a part of a call. */
export const callDelta = (index: number, it: { id?: string; name?: string; arguments?: string }) =>
  delta({
    tool_calls: [
      {
        index,
        ...(it.id ? { id: it.id, type: 'function' } : {}),
        function: { name: it.name, arguments: it.arguments },
      },
    ],
  });
/** Thinks, says something, and calls two tools whose arguments arrive interleaved. */
export const twoCalls = streaming(
  delta({ role: 'assistant', reasoning_content: 'Two ' }),
  delta({ reasoning_content: 'cities.' }),
  delta({ content: 'I look ' }),
  delta({ content: 'it up.' }),
  callDelta(0, { id: 'call_a', name: 'weather', arguments: '' }),
  callDelta(0, { arguments: '{"city":' }),
  callDelta(1, { id: 'call_b', name: 'weather', arguments: '{"city":' }),
  callDelta(0, { arguments: '"Paris"}' }),
  callDelta(1, { arguments: '"Rome"}' }),
  delta({}, 'tool_calls'),
  counted(USAGE),
  DONE,
);

export const MESSAGES_TOOL = {
  name: 'weather',
  description: 'The weather in a city.',
  input_schema: { type: 'object' as const, properties: { city: { type: 'string' } } },
};
export const HI = [{ role: 'user' as const, content: 'hi' }];
export const ASKED = { model: 'chat', max_tokens: 100, messages: HI };

export const RESPONSES_TOOL = {
  type: 'function' as const,
  name: 'weather',
  parameters: MESSAGES_TOOL.input_schema,
  strict: false,
};
