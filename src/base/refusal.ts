/** Advice once an attempt has ended for good. */
export const NEW_KEY = 'a new key is safe now.';
export const RETRY_SAME_KEY = 'Retry with the same Idempotency-Key and body, never under a new key.';

/** Returns the refusals of one status, each with its message. */
const ofStatus = <S extends number, C extends string>(status: S, messages: Record<C, string>) =>
  Object.fromEntries(Object.entries<string>(messages).map(([code, message]) => [code, { status, message }])) as Record<
    C,
    { status: S; message: string }
  >;

/**
 * Every refusal of Purser: code, HTTP status and default message (design, section 3). The code is for programs and never
 * changes. The message is for people; code that knows more replaces it with one that names figures and fields.
 */
export const REFUSALS = {
  ...ofStatus(400, {
    invalid_request: 'The request is not valid.',
    invalid_json: 'The body is not valid JSON in UTF-8.',
    idempotency_key_required: 'Send an Idempotency-Key header of 1 to 128 characters with this request.',
    invalid_idempotency_key: 'The Idempotency-Key header must have 1 to 128 printable ASCII characters.',
    invalid_cursor: 'The cursor in "before" is not one that a previous page returned.',
    streaming_not_supported: 'This endpoint does not stream: leave "stream" out or send false.',
    context_length_exceeded: 'The prompt does not fit the context of the model.',
    unsupported_parameter: 'The request has a parameter that has no price.',
  }),
  ...ofStatus(401, { unauthenticated: 'The token is missing, unknown, revoked or malformed.' }),
  ...ofStatus(402, {
    insufficient_funds: 'The credit does not cover this request.',
    funds_held: 'The credit would cover this request once the holds in flight have settled. Retry later.',
  }),
  ...ofStatus(403, {
    wrong_token_scope: 'This token may not be used for this endpoint.',
    account_suspended: 'The account is suspended: no new wallets, holds or keys until the operator resumes it.',
    wallet_frozen: 'The wallet is frozen: it spends nothing until it is unfrozen.',
  }),
  ...ofStatus(404, {
    not_found: 'Not found.',
    model_not_found: 'The model is not on offer. The list of models shows those that are.',
    offer_not_found: 'There is no such offer. GET /v1/compute/offers lists those that are.',
  }),
  ...ofStatus(405, { method_not_allowed: 'The path exists, but not with this method.' }),
  ...ofStatus(409, {
    idempotency_conflict: 'This Idempotency-Key was used with another body. Use a new key for a new request.',
    idempotency_in_progress:
      'The first attempt with this Idempotency-Key is still running. Retry with the same key and body.',
    idempotency_key_expired:
      'This request was answered and charged, and its answer is no longer kept. Use a new key for a new request.',
    cleanup_pending: 'The wallet is closing and its cleanup continues. Repeat the request until it answers 200.',
    wallet_closed: 'The wallet is closed.',
    wallet_expired: 'The wallet has expired.',
    wallet_limit_exceeded: 'The wallet would exceed a limit.',
    resource_not_active: 'The resource is not running.',
    extension_not_supported: 'Resources of provider_one cannot be extended.',
    lease_limit_exceeded: 'The lease would exceed a limit.',
    answer_lost: 'The answer to this request was lost. What was charged is final; a new key is safe now.',
  }),
  ...ofStatus(408, { request_timeout: 'The request came too slowly.' }),
  ...ofStatus(413, { payload_too_large: 'The body is too large.' }),
  ...ofStatus(415, { unsupported_media_type: 'Send the body as application/json.' }),
  ...ofStatus(426, {
    upgrade_not_supported: 'This endpoint does not speak WebSocket. Send POST, with "stream": true for events.',
  }),
  ...ofStatus(431, { head_too_large: 'The head of the request, its address and its headers, is longer than 16 KiB.' }),
  ...ofStatus(429, { rate_limited: 'Too many requests. Retry after the time in Retry-After.' }),
  ...ofStatus(500, {
    internal_error: 'An internal error occurred. The server log has the details under this request id.',
  }),
  ...ofStatus(502, { port_unreachable: 'Nothing answers on this port inside the resource.' }),
  ...ofStatus(501, {
    transfer_not_configured: 'This installation has no transfer storage configured.',
    billing_not_configured: 'This installation has no payment provider configured.',
    provider_not_configured: 'This installation has no provider configured for this request.',
  }),
  ...ofStatus(503, {
    provider_unavailable: 'The provider cannot be reached. Nothing was charged. Retry later.',
    capacity_unavailable: 'The provider has no capacity. Nothing was charged. Retry later.',
    gateway_unavailable: 'The model server cannot answer. Nothing was charged. Retry later.',
    operation_uncertain: `The outcome is not known yet. ${RETRY_SAME_KEY}`,
    read_only: 'No new spending is possible at the moment. Retry later.',
  }),
  ...ofStatus(409, { conflict: 'The current state does not allow this.' }), // the operator's commands only
};

export type RefusalCode = keyof typeof REFUSALS;

type RefusalOptions = {
  /** Whole seconds after which a retry makes sense; sent as Retry-After. */
  retryAfterSeconds?: number;
  /** The path of the invalid request field; OpenAI's clients show it. */
  param?: string;
  /** The member that a client of Anthropic reads beside the message, to continue without the refused part. */
  details?: RefusalDetails;
  cause?: unknown;
};

type RefusalDetails = { readonly [name: string]: string | readonly string[] };

/** An expected refusal. Thrown by the domain, which knows no HTTP; the HTTP endpoints and the CLI render it. */
export class Refusal extends Error {
  readonly code: RefusalCode;
  readonly retryAfterSeconds: number | undefined;
  readonly param: string | undefined;
  readonly details: RefusalDetails | undefined;

  constructor(code: RefusalCode, message: string = REFUSALS[code].message, options: RefusalOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'Refusal';
    this.code = code;
    this.retryAfterSeconds = options.retryAfterSeconds;
    this.param = options.param;
    this.details = options.details;
  }
}

/** A refusal as plain data, as it crosses between threads. */
export type RefusalData = {
  code: RefusalCode;
  message: string;
  retryAfterSeconds: number | undefined;
  param: string | undefined;
  details: RefusalDetails | undefined;
};

/** Returns a refusal as plain data; throws everything else. */
export function refusedFrom(error: unknown): RefusalData {
  if (!(error instanceof Refusal)) throw error;
  const { code, message, retryAfterSeconds, param, details } = error;
  return { code, message, retryAfterSeconds, param, details };
}

/** Returns the refusal that the data describes. */
export function refusalOf({ code, message, retryAfterSeconds, param, details }: RefusalData, cause?: unknown): Refusal {
  return new Refusal(code, message, {
    cause,
    ...(retryAfterSeconds === undefined ? {} : { retryAfterSeconds }),
    ...(param === undefined ? {} : { param }),
    ...(details === undefined ? {} : { details }),
  });
}
