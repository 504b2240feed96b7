import type { ServerResponse } from 'node:http';
import type { Handler } from './upstream.ts';

/** The model server's token counts for one answer. `cached` tokens are part of the prompt's. */
export type Counted = { model: string; prompt: number; cached: number; completion: number };

/** USD per token, and per request. */
export type Prices = { prompt: string; input_cache_read?: string; completion: string; request?: string };

const FEMTOS_PER_NANO = 10n ** 6n;
const decimal = (text: string, decimals: number) => {
  const [whole = '', part = ''] = text.split('.');
  return BigInt(whole + part.padEnd(decimals, '0'));
};
export const nanosOf = (usd: string): bigint => decimal(usd, 9);

/** Returns the cost of one answer, rounded up to a nano-dollar: computed from the price list, without any code of Purser. */
export function costOf({ prompt, cached, completion }: Counted, price: Prices): bigint {
  const of = (tokens: number, usd: string) => BigInt(tokens) * decimal(usd, 15);
  const plain = of(prompt - cached, price.prompt) + of(completion, price.completion);
  const all = plain + of(cached, price.input_cache_read ?? price.prompt) + decimal(price.request ?? '0', 15);
  return (all + FEMTOS_PER_NANO - 1n) / FEMTOS_PER_NANO;
}

type Json = Record<string, any>;

export type ModelServer = {
  handle: Handler;
  /** Streams the beginning of an answer, an error and the usage so far, and breaks off. */
  breakOff: Handler;
  counted: Counted[];
};

/**
 * Opens a model server as OpenAI's clients expect it: plain and streamed chat, by default one that repeats the last message,
 * tools, structured output, embeddings. It keeps its own count of every answer.
 */
export function openModelServer(answer: (body: Json) => Json = answerTo): ModelServer {
  const counted: Counted[] = [];

  const count = ({ model, messages, input }: Json, completion: number) => {
    const prompt = Math.ceil(Buffer.byteLength(JSON.stringify(messages ?? input)) / 4);
    const cached = messages ? Math.floor(prompt / 3) : 0;
    counted.push({ model, prompt, cached, completion });
    return {
      prompt_tokens: prompt,
      prompt_tokens_details: { cached_tokens: cached },
      completion_tokens: completion,
      total_tokens: prompt + completion,
    };
  };

  return {
    counted,
    breakOff({ body }, response) {
      const choices = [{ index: 0, delta: { role: 'assistant', content: 'Half an ' }, finish_reason: null }];
      const chunk = { id: 'chatcmpl-half', object: 'chat.completion.chunk', created: 1, model: body.model, choices };
      const error = { message: 'out of memory', type: 'server_error' };
      const last = { ...chunk, choices: [], usage: count(body, 2) };
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write([chunk, { error }, last].map(eventOf).join(''), () => response.destroy());
    },
    handle({ path, body }, response) {
      if (path.endsWith('/embeddings')) return sendJson(response, embeddings(body, count(body, 0)));
      const message = answer(body);
      const usage = count(body, Math.ceil(JSON.stringify(message).length / 4));
      const head = { id: `chatcmpl-${counted.length}`, created: 1, model: body.model };
      if (body.stream) return sendStream(response, head, body, message, usage);
      const choices = [{ index: 0, message, finish_reason: finishOf(message) }];
      sendJson(response, { ...head, object: 'chat.completion', choices, usage });
    },
  };
}

const finishOf = ({ tool_calls: calls }: Json) => (calls ? 'tool_calls' : 'stop');

function sendJson(response: ServerResponse, body: unknown): void {
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
}

/** Calls the first tool, once; or fills in the schema, if there is one; or repeats the last message. */
function answerTo({ messages, tools, response_format: format }: Json): Json {
  const last = messages.at(-1);
  if (tools && last.role !== 'tool') {
    const { name, parameters } = tools[0].function;
    const call = { name, arguments: JSON.stringify(sample(parameters)) };
    return { role: 'assistant', content: null, tool_calls: [{ id: 'call_1', type: 'function', function: call }] };
  }
  const schema = format?.json_schema?.schema;
  return { role: 'assistant', content: schema ? JSON.stringify(sample(schema)) : `You said: ${last.content}` };
}

/** Returns a value that fits the JSON schema. */
function sample({ type, properties = {} }: Json): unknown {
  if (type === 'integer') return 1815;
  if (type !== 'object') return 'Ada';
  return Object.fromEntries(Object.entries<Json>(properties).map(([name, it]) => [name, sample(it)]));
}

/** Formats a server-sent event. */
const eventOf = (data: unknown) => `data: ${JSON.stringify(data)}\n\n`;

function sendStream(
  response: ServerResponse,
  head: Json,
  body: Json,
  { tool_calls: calls, ...message }: Json,
  usage: Json,
): void {
  const chunk = (rest: Json) => response.write(eventOf({ ...head, object: 'chat.completion.chunk', ...rest }));
  const delta = (it: Json, finish: string | null = null) =>
    chunk({ choices: [{ index: 0, delta: it, finish_reason: finish }] });
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  delta({ role: 'assistant', content: '' });
  for (const word of (message.content ?? '').split(/(?<= )/)) delta({ content: word });
  if (calls) delta({ tool_calls: calls.map((it: Json, index: number) => ({ index, ...it })) });
  delta({}, finishOf({ tool_calls: calls }));
  if (body.stream_options?.include_usage) chunk({ choices: [], usage });
  response.end('data: [DONE]\n\n');
}

/** Returns vectors with one number per character of the text, as numbers or as base64. */
function embeddings({ input, model, encoding_format: format }: Json, usage: Json) {
  const data = [input].flat().map((text: string, index: number) => {
    const numbers = Float32Array.from(text, (it) => it.charCodeAt(0));
    const embedding = format === 'base64' ? Buffer.from(numbers.buffer).toString('base64') : [...numbers];
    return { object: 'embedding', index, embedding };
  });
  return { object: 'list', data, model, usage };
}
