import * as v from 'valibot';
import { Refusal } from '../../refusal.ts';
import { endpoint } from '../endpoint.ts';
import { uploadCompute } from './inside.ts';

export const answerMcp = endpoint({
  summary: 'The wallet as an MCP server: one JSON-RPC message in, its answer out',
  scope: 'wallet',
  body: v.record(v.string(), v.unknown()),
  bodyBytesMax: uploadCompute.bodyBytesMax as number, // The largest argument is the content of an upload.
  answer: v.record(v.string(), v.unknown()),
  example: {
    body: { jsonrpc: '2.0', id: 1, method: 'ping' },
    answer: { jsonrpc: '2.0', id: 1, result: {} },
  },
  async run(app, call) {
    refuseOrigin(call.headers.origin, app.state.baseUrl);
    // The SDK is a fifth of the code and most installations never use it, so it is loaded by the first request.
    const { answerMessage } = await import('../mcp/server.ts');
    return answerMessage(app, call);
  },
});

/**
 * Refuses a request of a web page that this installation did not serve, as the transport's specification demands
 * (2025-11-25, Streamable HTTP, Security Warning). Clients that are not browsers send no Origin.
 */
function refuseOrigin(origin: string | undefined, baseUrl: string): void {
  if (origin !== undefined && origin !== new URL(baseUrl).origin)
    throw new Refusal('wrong_token_scope', 'Web pages of another origin may not use this endpoint.');
}
