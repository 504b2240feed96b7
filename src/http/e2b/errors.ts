import type { Context } from 'hono';
import { REFUSALS, Refusal, type RefusalCode } from '../../base/refusal.ts';
import { describeError, type Env, type HttpApp, requestIdOf } from '../endpoint.ts';
import { isE2bApi } from './paths.ts';

/** Errors in E2B's shape. Its SDKs decide by the number in the body. */

/** The status of an outcome that is not known: a 503 would mean to users of E2B that nothing has happened. */
const UNCERTAIN = 504;

/** The codes of a sandbox that is over. */
const GONE = new Set<RefusalCode>(['resource_not_active', 'wallet_closed', 'wallet_expired']);
export const isGone = (code: RefusalCode): boolean => GONE.has(code);
/** Returns E2B's error for a call into a sandbox that is gone. */
export const GONE_STATUS = 502;

/** Returns the status of a code for E2B's SDKs: `isInside` for a call into a sandbox. */
function e2bStatus(code: RefusalCode, isInside: boolean): number {
  if (isInside && isGone(code)) return GONE_STATUS;
  const mayHaveHappened = code === 'operation_uncertain' || (isInside && code === 'provider_unavailable');
  return mayHaveHappened ? UNCERTAIN : REFUSALS[code].status;
}

/** Headers of every answer: many contain a credential. */
export const headersFor = (c: Context<Env>): Record<string, string> => ({
  'content-type': 'application/json',
  'x-request-id': requestIdOf(c),
  'cache-control': 'no-store',
});

/** Answers an error: `{code, message}` with the status as a number. */
export function answerError(app: Pick<HttpApp, 'events' | 'storage'>, c: Context<Env>, error: unknown): Response {
  const { refusal, message } = describeError(app, requestIdOf(c), c.req.path, error);
  const status = e2bStatus(refusal.code, !isE2bApi(c.req.path));
  const { retryAfterSeconds } = refusal;
  const headers = headersFor(c);
  // The SDKs repeat a request by this header on a 429 alone.
  if (retryAfterSeconds !== undefined) headers['retry-after'] = String(retryAfterSeconds);
  // The unread rest of the body is not waited for.
  if (['payload_too_large', 'unsupported_media_type'].includes(refusal.code)) headers.connection = 'close';
  const body = { code: status, message, error_code: refusal.code };
  return new Response(JSON.stringify(body), { status, headers });
}

/** The refusal where the connection into a machine was lost, before it is known why: the machine may be gone. */
export const guestLost = (cause: unknown): Refusal =>
  new Refusal('provider_unavailable', 'The connection into the sandbox was lost, and the outcome is not known.', {
    cause,
  });

/** The refusal where it is not known whether a call into a machine had an effect. */
export const guestUncertain = (cause: unknown): Refusal =>
  new Refusal('operation_uncertain', 'The call into the sandbox failed, and its outcome is not known.', { cause });
