import type { ServerResponse } from 'node:http';
import type { TestContext } from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { streaming } from '../helper/sse.ts';
import { type Handler, openUpstream } from '../helper/upstream.ts';
import { vendorClients } from '../helper/vendor-clients.ts';

// Requests in Anthropic's Messages and OpenAI's Responses, passed on as they came to upstreams that speak these APIs.

const PRICE = {
  prompt: '3',
  completion: '15',
  input_cache_read: '0.3',
  input_cache_write: '3.75',
  input_cache_write_1h: '6',
  internal_reasoning: '20',
};
const LIMITS = { context_length: 200_000, max_output_tokens: 8000 };

/** Opens a server whose upstream speaks both APIs, and `other`, an upstream that speaks neither. */
export async function open(
  t: TestContext,
  wallet: Record<string, unknown> = {},
  unknownCountMax?: number,
  ofOwn: Record<string, unknown> = {},
) {
  const other = await openUpstream(t);
  const purser = await openTestServer(t, {
    ...(unknownCountMax === undefined ? {} : { unknownCountMax }),
    change: (all) => {
      const [local] = all.router.upstreams;
      return {
        ...all,
        router: {
          upstreams: [
            { ...local, wires: ['messages', 'responses'], forward: ['documents', 'thinking'] },
            { name: 'other', base_url: other.url },
          ],
          models: [
            {
              id: 'own',
              upstream: 'local',
              upstream_model: 'real/own',
              ...LIMITS,
              pricing_per_million: PRICE,
              ...ofOwn,
            },
            {
              id: 'both',
              upstream: 'local',
              ...LIMITS,
              pricing_per_million: PRICE,
              fallbacks: [{ upstream: 'other', pricing_per_million: { prompt: '3', completion: '15' } }],
            },
            {
              id: 'back',
              upstream: 'other',
              ...LIMITS,
              pricing_per_million: PRICE,
              fallbacks: [{ upstream: 'local' }],
            },
            {
              id: 'short',
              upstream: 'local',
              ...LIMITS,
              pricing_per_million: { prompt: '3', completion: '15', input_cache_write: '3.75' },
            },
            { id: 'plain', upstream: 'local', ...LIMITS, pricing_per_million: { prompt: '3', completion: '15' } },
            { id: 'dear', upstream: 'local', ...LIMITS, pricing_per_million: { prompt: '3', completion: '200' } },
            { id: 'dearest', upstream: 'local', ...LIMITS, pricing_per_million: { prompt: '3', completion: '600' } },
            {
              id: 'seeing',
              upstream: 'local',
              ...LIMITS,
              image_tokens: 1000,
              pricing_per_million: { prompt: '3', completion: '15', image: '0' },
            },
          ],
        },
      };
    },
  });
  const gateway = await openGateway(purser, { wallet });
  return {
    purser,
    other,
    gateway,
    ...vendorClients(purser.url, gateway.key),
  };
}

/** Returns the latest operation of the books. */
export const latest = async (purser: TestServer): Promise<any> =>
  (await purser.run('operation.list', {})).operations[0];
/** Returns a call that an upstream got: the last one, or that at `at`. */
export const sent = ({ upstream }: Pick<TestServer, 'upstream'>, at = -1) => upstream.calls.at(at) as any;
/** Answers with JSON. */
export const send = (response: ServerResponse, text: string) => {
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(text);
};

/** Prompt 100 = 10 plain + 60 read + 30 written, of which 20 for an hour; completion 40, of which 15 thinking. */
const COUNTED = {
  input_tokens: 10,
  cache_read_input_tokens: 60,
  cache_creation_input_tokens: 30,
  cache_creation: { ephemeral_5m_input_tokens: 10, ephemeral_1h_input_tokens: 20 },
  output_tokens: 40,
  output_tokens_details: { thinking_tokens: 15 },
  server_tool_use: null,
  service_tier: 'standard',
};
/** In nanos: 3000, 300, 3750 and 6000 a token of the prompt, 15000 and 20000 of the answer. */
export const COST = 10 * 3000 + 60 * 300 + 10 * 3750 + 20 * 6000 + 25 * 15_000 + 15 * 20_000;
/** Writes nanos as USD, as the API does. */
export const usd = (nanos: number) => (nanos / 1e9).toFixed(9).replace(/0+$/, '');

export const MESSAGE = {
  id: 'msg_01real',
  type: 'message',
  role: 'assistant',
  model: 'real/own',
  content: [
    { type: 'thinking', thinking: 'They greet.', signature: 'c2lnbmVk' },
    { type: 'text', text: 'hello' },
    { type: 'tool_use', id: 'toolu_1', name: 'look', input: { at: 'x' } },
  ],
  stop_reason: 'tool_use',
  stop_sequence: null,
  usage: COUNTED,
};
/** Written with spaces, as no JSON.stringify writes it. */
export const MESSAGE_TEXT = JSON.stringify(MESSAGE, null, 1);
/** Answers with the message. */
export const message: Handler = (_, response) => send(response, MESSAGE_TEXT);

/** Returns an event that is named after its type. */
export const named = (data: { type: string }) => `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`;
export const { usage: _, ...begun } = MESSAGE;
export const START = named({
  type: 'message_start',
  message: { ...begun, content: [], stop_reason: null, usage: { ...COUNTED, output_tokens: 1 } },
} as never);
export const PING = named({ type: 'ping' });
const block = (index: number, content_block: object, ...deltas: object[]) => [
  named({ type: 'content_block_start', index, content_block } as never),
  ...deltas.map((delta) => named({ type: 'content_block_delta', index, delta } as never)),
  named({ type: 'content_block_stop', index } as never),
];
export const BLOCKS = [
  ...block(
    0,
    { type: 'thinking', thinking: '', signature: '' },
    { type: 'thinking_delta', thinking: 'They greet.' },
    { type: 'signature_delta', signature: 'c2lnbmVk' },
  ),
  ...block(1, { type: 'text', text: '' }, { type: 'text_delta', text: 'hel' }, { type: 'text_delta', text: 'lo' }),
  ...block(
    2,
    { type: 'tool_use', id: 'toolu_1', name: 'look', input: {} },
    { type: 'input_json_delta', partial_json: '{"at":' },
    { type: 'input_json_delta', partial_json: '"x"}' },
  ),
];
export const STOP = [
  named({
    type: 'message_delta',
    delta: { stop_reason: 'tool_use', stop_sequence: null },
    usage: { output_tokens: 40, output_tokens_details: { thinking_tokens: 15 }, input_tokens: null },
  } as never),
  named({ type: 'message_stop' }),
];
/** A server may send a sign of life before anything else. */
export const MESSAGE_EVENTS = [PING, START, PING, ...BLOCKS, ...STOP];
export const messageStream = streaming(...MESSAGE_EVENTS);

const ITEMS = [
  { id: 'rs_1', type: 'reasoning', summary: [], encrypted_content: 'Z2VoZWlt' },
  { id: 'fc_1', type: 'function_call', call_id: 'call_1', name: 'look', arguments: '{"at":"x"}', status: 'completed' },
];
export const RESPONSE = {
  id: 'resp_real',
  object: 'response',
  created_at: 7,
  status: 'completed',
  model: 'real/own',
  output: ITEMS,
  store: false,
  error: null,
  usage: {
    input_tokens: 100,
    input_tokens_details: { cached_tokens: 60, cache_write_tokens: 10 },
    output_tokens: 40,
    output_tokens_details: { reasoning_tokens: 15 },
    total_tokens: 140,
  },
};
export const RESPONSE_COST = 30 * 3000 + 60 * 300 + 10 * 3750 + 25 * 15_000 + 15 * 20_000;
const numbered = (events: object[]) => events.map((it, sequence_number) => named({ ...it, sequence_number } as never));
export const RESPONSE_EVENTS = numbered([
  { type: 'response.created', response: { ...RESPONSE, status: 'in_progress', output: [], usage: null } },
  { type: 'response.in_progress', response: { ...RESPONSE, status: 'in_progress', output: [], usage: null } },
  { type: 'response.output_item.added', output_index: 0, item: { ...ITEMS[0], encrypted_content: '' } },
  { type: 'response.output_item.done', output_index: 0, item: ITEMS[0] },
  { type: 'response.output_item.added', output_index: 1, item: { ...ITEMS[1], arguments: '' } },
  {
    type: 'response.function_call_arguments.delta',
    item_id: 'fc_1',
    output_index: 1,
    delta: '{"at":"x"}',
  },
  { type: 'response.output_item.done', output_index: 1, item: ITEMS[1] },
  { type: 'response.completed', response: RESPONSE },
]);
export const responseStream = streaming(...RESPONSE_EVENTS);
/** Answers with the response. */
export const response: Handler = (_, answer) => send(answer, JSON.stringify(RESPONSE, null, 1));

export const ASKED = { model: 'own', max_tokens: 100, messages: [{ role: 'user' as const, content: 'hi' }] };
