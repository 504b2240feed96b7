import type { IncomingHttpHeaders } from 'node:http';
import { redactTokens } from '../base/log.ts';
import { REFUSALS, type Refusal, type RefusalCode } from '../base/refusal.ts';

/** The path of the gateway's base URL. */
export const GATEWAY_PATH = '/v1/router';
/** The paths of the gateway: some clients append /v1 to the base URL, so the whole of it is served there again. */
export const GATEWAY_PATHS = [GATEWAY_PATH, `${GATEWAY_PATH}/v1`];

/**
 * Returns whether a request is answered in the form that clients of model servers expect: all under the gateway's base URL
 * (design, section 8), except for the interface's own endpoint, which gives a wallet a key.
 */
export const isGatewayRequest = (method: string, path: string) =>
  path.startsWith(`${GATEWAY_PATH}/`) && !(path === `${GATEWAY_PATH}/key` && method !== 'GET');

const MESSAGES_PATH = /^\/v1\/router(\/v1)?\/messages(\/|$)/;
const MODELS_PATH = /^\/v1\/router(\/v1)?\/models(\/|$)/;

/**
 * Returns whether a request is answered in the shapes of Anthropic's API: by its path, or for the models, which have the same
 * path in both APIs, because it has the header that Anthropic's clients send.
 */
export const isOfAnthropic = (path: string, { 'anthropic-version': version }: IncomingHttpHeaders = {}): boolean =>
  MESSAGES_PATH.test(path) || (version !== undefined && MODELS_PATH.test(path));

/** Codes worth retrying; stock clients back off by themselves. Retrying any other code is pointless. */
const PASSING = new Set<RefusalCode>([
  'funds_held',
  'rate_limited',
  'idempotency_in_progress',
  'gateway_unavailable',
  'read_only',
]);

/** The longest Retry-After that stock clients obey; above it they give up or wait two seconds instead. */
export const RETRY_SECONDS_MAX = 59;

const TYPES: Record<number, string> = {
  401: 'authentication_error',
  402: 'billing_error',
  403: 'permission_error',
  429: 'rate_limit_error',
};

/**
 * Returns the status of a code. `funds_held` is a 429 here: stock clients wait that out, and never repeat a 402 (design 2.8). A
 * frozen wallet is a 402: agents show it and stop; some call a 403 a wrong key.
 */
export function gatewayStatus(code: RefusalCode): number {
  if (code === 'funds_held') return REFUSALS.rate_limited.status;
  return code === 'wallet_frozen' ? REFUSALS.insufficient_funds.status : REFUSALS[code].status;
}

/** Builds an error body in OpenAI's shape, with `type` and `param`. */
export function openAiBody({ code, param }: Refusal, message: string, requestId: string) {
  const status = gatewayStatus(code);
  const type = TYPES[status] ?? (status < 500 ? 'invalid_request_error' : 'server_error');
  // Like the message, it may quote the caller's input.
  const quoted = param === undefined ? null : redactTokens(param);
  return { error: { message, type, param: quoted, code }, request_id: requestId };
}

/** Returns whether a code is worth retrying: the value of `x-should-retry`, which OpenAI's clients obey over the status. */
export const isPassing = (code: RefusalCode): boolean => PASSING.has(code);
