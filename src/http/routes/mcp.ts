import * as v from 'valibot';
import { Refusal } from '../../base/refusal.ts';
import { endpoint } from '../endpoint.ts';
import { uploadCompute } from './guest.ts';

export const answerMcp = endpoint({
  summary: 'The wallet as an MCP server: one JSON-RPC message in, its answer out',
  scope: 'wallet',
  body: v.record(v.string(), v.unknown()),
  bodyBytesMax: uploadCompute.bodyBytesMax as number, // The largest argument is the content of an upload.
  valuesMax: 1000,
  answer: v.record(v.string(), v.unknown()),
  example: {
    body: { jsonrpc: '2.0', id: 1, method: 'ping' },
    answer: { jsonrpc: '2.0', id: 1, result: {} },
  },
  async run(app, call) {
    refuseOrigin(call.headers.origin, app.state.baseUrl);
    refuseLong(call.body);
    // The SDK is a fifth of the code and most installations never use it, so it is loaded by the first request.
    const { answerMessage } = await import('../mcp/server.ts');
    return answerMessage(app, call);
  },
});

/** Longer than any real id, method or tool name. The SDK reads each several times, and an answer repeats the id. */
const NAME_LENGTH_MAX = 256;

/** Refuses a message whose size is not in the arguments of its call, where the endpoint of the tool expects it. */
function refuseLong({ id, method, params, jsonrpc }: Record<string, unknown>): void {
  const { name } = (params ?? {}) as { name?: unknown };
  for (const [where, value] of Object.entries({ id, method, 'params.name': name, jsonrpc }))
    if (typeof value === 'string' ? value.length > NAME_LENGTH_MAX : typeof value === 'object' && value !== null)
      throw new Refusal('invalid_request', `${where}: must be at most ${NAME_LENGTH_MAX} characters.`, {
        param: where,
      });
}

/**
 * Refuses a request of a web page that this installation did not serve, as the transport's specification demands
 * (2025-11-25, Streamable HTTP, Security Warning). Clients that are not browsers send no Origin.
 */
function refuseOrigin(origin: string | undefined, baseUrl: string): void {
  if (origin !== undefined && origin !== new URL(baseUrl).origin)
    throw new Refusal('wrong_token_scope', 'Web pages of another origin may not use this endpoint.');
}
