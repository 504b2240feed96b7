import { redact } from '../../../base/log.ts';
import type { JsonAnswer } from '../../../net/json-answer.ts';
import { Unanswered } from '../../../net/watched-pool.ts';

const WORDS_CHARACTERS_MAX = 500;

/** The server answered with an error and did nothing. `reason` is Kubernetes' own word, such as `AlreadyExists`. */
export class ApiError extends Error {
  readonly status: number;
  readonly reason: string;
  constructor(status: number, reason: string, message: string) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}
/** The server gave no answer to a call. */
export class ApiUnreachable extends Unanswered {}

/** Returns whether Kubernetes itself reports an absence. A proxy before the server may answer 404 as well, which proves nothing. */
export const isNotFound = (error: unknown) =>
  error instanceof ApiError && error.status === 404 && error.reason === 'NotFound';

/** Returns the error of an answer that is not a success. */
export function errorOf(status: number, { json, beginning }: Omit<JsonAnswer, 'length'>): ApiError {
  const body = json as { kind?: string; reason?: string; message?: string } | null | undefined;
  const { reason = '', message = '' } = body?.kind === 'Status' ? body : { message: beginning };
  const words = redact(message.replace(/\s+/g, ' ').trim()).slice(0, WORDS_CHARACTERS_MAX);
  return new ApiError(status, reason, `${status} ${words}`.trim());
}

/** Returns whether the server refused a pod because there is no RuntimeClass of its name (its admission plugin of that name). */
export function lacksRuntimeClass(error: unknown): boolean {
  if (!isRefusal(error)) return false;
  const [, ...rest] = (error as ApiError).message.toLowerCase().split('runtimeclass ');
  return rest.join().includes('not found');
}

/** Returns whether the object is there already, or was changed since it was read. */
export const isConflict = (error: unknown) => error instanceof ApiError && error.status === 409;

/**
 * Returns whether the server understood the request and refused it, or turned it away unread (429). A 408 is for a client that gave
 * up waiting.
 */
export const isRefusal = (error: unknown) =>
  error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 408;
