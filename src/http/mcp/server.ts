import {
  type CallToolResult,
  createMcpHandler,
  isLegacyRequest,
  type jsonSchemaValidator,
  ProtocolError,
  ProtocolErrorCode,
  Server,
  WebStandardStreamableHTTPServerTransport,
} from '@modelcontextprotocol/server';
import type { Json } from '../../base/parse-json.ts';
import { Refusal } from '../../base/refusal.ts';
import { describeError, type EndpointReply, type HttpApp, type Invocation, invoke } from '../endpoint.ts';
import { INTERFACE_VERSION } from '../openapi.ts';
import { listTools, partArguments, TOOLS, type Tool } from './tools.ts';

const INSTRUCTIONS = `A prepaid wallet for you, the agent: it can rent machines by the second and run commands on them, up to a fixed budget that you cannot exceed.
Amounts are US dollars as exact decimal strings; times are Unix seconds.
Read wallet_budget before you spend. compute_create, compute_extend and wallet_delegate move money and need idempotency_key: a new one for each purchase, the same one with the same arguments when you repeat a call whose outcome you do not know. A repeated call is paid once and returns the first result.
A machine that is provisioning, and a command that works in the background, are waited for with compute_wait.
A refusal is an error result with error.code and error.message, and request_id for the operator. Refusals with retry_after_seconds are worth repeating after that time.`;

const TOOL_LIST = listTools();
/** The names of the arguments that each tool takes. */
const ARGUMENTS = new Map(TOOL_LIST.map(({ name, inputSchema }) => [name, Object.keys(inputSchema.properties)]));

type McpCall = Pick<Invocation, 'principal' | 'requestId' | 'headers' | 'share' | 'whenGone'>;

/**
 * Answers one JSON-RPC message of the Model Context Protocol, in the revision that it is written in: 2026-07-28, or one
 * that begins with `initialize`. Nothing is kept between messages.
 */
export async function answerMessage(app: HttpApp, call: McpCall & { body: unknown }): Promise<EndpointReply> {
  const request = new Request(`${app.state.baseUrl}/v1/mcp`, { method: 'POST', headers: headersFor(call) });
  const message = { parsedBody: call.body };
  const answer = (await isLegacyRequest(request, call.body)) ? answerLegacy : answerModern;
  const response = await answer(app, call, request, message);
  return { status: response.status, body: Buffer.from(await response.arrayBuffer()) };
}

/** Answers a message of revision 2026-07-28. Subscriptions are refused: they would be streams without an end. */
async function answerModern(app: HttpApp, call: McpCall, request: Request, message: { parsedBody: unknown }) {
  const options = { legacy: 'reject', maxSubscriptions: 0 } as const;
  const { fetch: answer } = createMcpHandler(() => createServer(app, call), options);
  return await answer(request, message);
}

/** Answers a message of a revision before 2026-07-28. Unlike the handler of the SDK it answers JSON, not an event. */
async function answerLegacy(app: HttpApp, call: McpCall, request: Request, message: { parsedBody: unknown }) {
  await using server = createServer(app, call);
  const transport = new WebStandardStreamableHTTPServerTransport({ enableJsonResponse: true });
  await server.connect(transport);
  return await transport.handleRequest(request, message);
}

/** The headers that the protocol reads. Every answer is JSON, so a client that accepts nothing else is served too. */
function headersFor({ headers }: McpCall): Record<string, string> {
  const own = Object.entries(headers).filter(([name]) => name.startsWith('mcp-')) as [string, string][];
  return {
    ...Object.fromEntries(own),
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
  };
}

/**
 * The SDK's validator checks what users answer when a tool asks them. No tool asks, and the validator takes a quarter of a
 * megabyte.
 */
const NO_VALIDATOR: jsonSchemaValidator = {
  getValidator() {
    throw new Error('no tool asks people anything');
  },
};

/** Creates the server of one message. */
function createServer(app: HttpApp, call: McpCall): Server & AsyncDisposable {
  const server = new Server(
    { name: 'purser', title: 'Purser wallet', version: INTERFACE_VERSION },
    { capabilities: { tools: {} }, instructions: INSTRUCTIONS, jsonSchemaValidator: NO_VALIDATOR },
  );
  server.setRequestHandler('tools/list', () => ({ tools: TOOL_LIST }));
  server.setRequestHandler('tools/call', ({ params }) => {
    const tool = Object.hasOwn(TOOLS, params.name) ? TOOLS[params.name] : undefined;
    if (!tool) throw new ProtocolError(ProtocolErrorCode.InvalidParams, 'There is no such tool.');
    return callTool(app, call, params.name, tool, params.arguments ?? {});
  });
  return Object.assign(server, { [Symbol.asyncDispose]: () => server.close() });
}

/** Calls the endpoint of a tool with the arguments as its body and query. */
async function callTool(app: HttpApp, call: McpCall, name: string, tool: Tool, args: Json): Promise<CallToolResult> {
  const endpoint = tool.withoutId && args.id === undefined ? tool.withoutId : tool.endpoint;
  const { idempotency_key: given, ...others } = args;
  const key = typeof given === 'string' ? given.trim() : given; // As HTTP does, so that it is the same key there.
  const { query, raw } = partArguments(tool, endpoint.idempotent ? others : args);
  try {
    refuseUnknown(name, args);
    const { id = '' } = args;
    if (typeof id !== 'string') throw new Refusal('invalid_request', 'id: must be a string.');
    const params = { id };
    const { accept: _, ...headers } = call.headers; // It belongs to the message; a tool answers JSON.
    const body = tool.body ? tool.body.toBody(raw, call.share) : raw;
    const reply = await invoke(app, endpoint, { ...call, headers, raw: body, key, params, query });
    if (!('body' in reply)) throw new Error('a tool has an endpoint that streams');
    const answer = tool.answer ? tool.answer.ofAnswer(reply.body, call.share) : reply.body;
    const result = resultOf(answer as Json);
    return reply.replayed ? { ...result, _meta: { 'idempotent-replayed': true } } : result;
  } catch (error) {
    const { refusal, message } = describeError(app, call.requestId, '/v1/mcp', error);
    return { ...resultOf(refusalBody(refusal, message, call.requestId)), isError: true };
  }
}

/**
 * Throws `invalid_request` for an argument that the tool does not take. Endpoints ignore unknown members, but a misspelt
 * `id` would make this another call, which closes the caller's own wallet.
 */
function refuseUnknown(name: string, args: Json): void {
  const known = ARGUMENTS.get(name) as string[];
  const unknown = Object.keys(args).find((it) => !known.includes(it));
  if (unknown === undefined) return;
  const takes = known.length ? `these arguments: ${known.join(', ')}` : 'no arguments';
  throw new Refusal('invalid_request', `${unknown.slice(0, 120)}: unknown property. ${name} takes ${takes}.`);
}

/** Returns the interface's JSON twice: as structured content, and as text for clients that show the model only text. */
const resultOf = (body: Json): CallToolResult => ({
  content: [{ type: 'text', text: JSON.stringify(body) }],
  structuredContent: body,
});

/** Builds the error body of the interface. It includes the delay before a retry, which is a header over HTTP. */
function refusalBody({ code, retryAfterSeconds }: Refusal, message: string, requestId: string): Json {
  return {
    error: { code, message: message.replace(/Idempotency-Key( header)?/g, 'idempotency_key') },
    ...(retryAfterSeconds === undefined ? {} : { retry_after_seconds: retryAfterSeconds }),
    request_id: requestId,
  };
}
