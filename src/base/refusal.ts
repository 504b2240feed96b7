/** Advice once an attempt has ended for good. */
export const NEW_KEY = 'a new key is safe now.';
export const RETRY_SAME_KEY = 'Retry with the same Idempotency-Key and body, never under a new key.';

/**
 * Every refusal of Purser: code, HTTP status and default message (design, section 3). The code is for programs and never
 * changes. The message is for people; code that knows more replaces it with one that names figures and fields.
 */
export const REFUSALS = {
  invalid_request: { status: 400, message: 'The request is not valid.' },
  invalid_json: { status: 400, message: 'The body is not valid JSON in UTF-8.' },
  idempotency_key_required: {
    status: 400,
    message: 'Send an Idempotency-Key header of 1 to 128 characters with this request.',
  },
  invalid_idempotency_key: {
    status: 400,
    message: 'The Idempotency-Key header must have 1 to 128 printable ASCII characters.',
  },
  invalid_cursor: { status: 400, message: 'The cursor in "before" is not one that a previous page returned.' },
  streaming_not_supported: {
    status: 400,
    message: 'This endpoint does not stream: leave "stream" out or send false.',
  },
  context_length_exceeded: { status: 400, message: 'The prompt does not fit the context of the model.' },
  unsupported_parameter: { status: 400, message: 'The request has a parameter that has no price.' },
  unauthenticated: { status: 401, message: 'The token is missing, unknown, revoked or malformed.' },
  insufficient_funds: { status: 402, message: 'The credit does not cover this request.' },
  funds_held: {
    status: 402,
    message: 'The credit would cover this request once the holds in flight have settled. Retry later.',
  },
  wrong_token_scope: { status: 403, message: 'This token may not be used for this endpoint.' },
  account_suspended: {
    status: 403,
    message: 'The account is suspended: no new wallets, holds or keys until the operator resumes it.',
  },
  wallet_frozen: { status: 403, message: 'The wallet is frozen: it spends nothing until it is unfrozen.' },
  not_found: { status: 404, message: 'Not found.' },
  model_not_found: { status: 404, message: 'The model is not on offer. The list of models shows those that are.' },
  offer_not_found: { status: 404, message: 'There is no such offer. GET /v1/compute/offers lists those that are.' },
  method_not_allowed: { status: 405, message: 'The path exists, but not with this method.' },
  idempotency_conflict: {
    status: 409,
    message: 'This Idempotency-Key was used with another body. Use a new key for a new request.',
  },
  idempotency_in_progress: {
    status: 409,
    message: 'The first attempt with this Idempotency-Key is still running. Retry with the same key and body.',
  },
  idempotency_key_expired: {
    status: 409,
    message:
      'This request was answered and charged, and its answer is no longer kept. Use a new key for a new request.',
  },
  cleanup_pending: {
    status: 409,
    message: 'The wallet is closing and its cleanup continues. Repeat the request until it answers 200.',
  },
  wallet_closed: { status: 409, message: 'The wallet is closed.' },
  wallet_expired: { status: 409, message: 'The wallet has expired.' },
  wallet_limit_exceeded: { status: 409, message: 'The wallet would exceed a limit.' },
  resource_not_active: { status: 409, message: 'The resource is not running.' },
  extension_not_supported: { status: 409, message: 'Resources of provider_one cannot be extended.' },
  lease_limit_exceeded: { status: 409, message: 'The lease would exceed a limit.' },
  answer_lost: {
    status: 409,
    message: 'The answer to this request was lost. What was charged is final; a new key is safe now.',
  },
  request_timeout: { status: 408, message: 'The request came too slowly.' },
  payload_too_large: { status: 413, message: 'The body is too large.' },
  unsupported_media_type: { status: 415, message: 'Send the body as application/json.' },
  upgrade_not_supported: {
    status: 426,
    message: 'This endpoint does not speak WebSocket. Send POST, with "stream": true for events.',
  },
  head_too_large: {
    status: 431,
    message: 'The head of the request, its address and its headers, is longer than 16 KiB.',
  },
  rate_limited: { status: 429, message: 'Too many requests. Retry after the time in Retry-After.' },
  internal_error: {
    status: 500,
    message: 'An internal error occurred. The server log has the details under this request id.',
  },
  port_unreachable: {
    status: 502,
    message: 'Nothing answers on this port inside the resource.',
  },
  transfer_not_configured: { status: 501, message: 'This installation has no transfer storage configured.' },
  billing_not_configured: { status: 501, message: 'This installation has no payment provider configured.' },
  provider_not_configured: { status: 501, message: 'This installation has no provider configured for this request.' },
  provider_unavailable: { status: 503, message: 'The provider cannot be reached. Nothing was charged. Retry later.' },
  capacity_unavailable: { status: 503, message: 'The provider has no capacity. Nothing was charged. Retry later.' },
  gateway_unavailable: {
    status: 503,
    message: 'The model server cannot answer. Nothing was charged. Retry later.',
  },
  operation_uncertain: {
    status: 503,
    message: `The outcome is not known yet. ${RETRY_SAME_KEY}`,
  },
  read_only: { status: 503, message: 'No new spending is possible at the moment. Retry later.' },
  conflict: { status: 409, message: 'The current state does not allow this.' }, // the operator's commands only
} as const satisfies Record<string, { status: number; message: string }>;

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
