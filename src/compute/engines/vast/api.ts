import { setTimeout as sleep } from 'node:timers/promises';
import type { Dispatcher } from 'undici';
import { redact } from '../../../base/log.ts';
import { parseJson } from '../../../base/parse-json.ts';
import { deadline } from '../../../net/deadline.ts';
import { readJsonAnswer } from '../../../net/json-answer.ts';
import { openWatchedPool, Unanswered } from '../../../net/watched-pool.ts';

/** Vast limits the rate of calls for each of these separately. */
type VastEndpoint = 'search' | 'create' | 'show' | 'list' | 'attach' | 'destroy' | 'account';
export type Spacing = Readonly<Record<VastEndpoint, number>>;

/**
 * The least interval between two calls, in milliseconds. Vast has a minimum interval per endpoint and identity, and its
 * 429 carries no Retry-After; `search`, `attach` and `account` are not documented.
 */
export const VAST_SPACING: Spacing = {
  search: 1000,
  create: 4500,
  show: 2000,
  list: 1000,
  attach: 2000,
  destroy: 3000,
  account: 2000,
};

/** Time-outs of a call, in milliseconds. */
export type VastTimeLimits = { create: number; other: number };
export const VAST_TIME_LIMITS: VastTimeLimits = { create: 25_000, other: 15_000 };

const CONNECT_MILLISECONDS = 10_000;
/**
 * The longest wait for a turn; a call that would wait longer fails, and nothing is sent. Calls that a client waits for
 * fail early. Clean-up waits long, because a repeated call goes to the end of the queue.
 */
const TURN_MILLISECONDS_MAX: Spacing = {
  search: 15_000,
  create: 15_000,
  show: 60_000,
  list: 60_000,
  attach: 60_000,
  destroy: 60_000,
  account: 15_000,
};
const ANSWER_BYTES_MAX = 16 * 1024 * 1024;
const REASON_CHARACTERS_MAX = 300;
/** The number of times that a read is tried while Vast answers 429. */
const READ_ATTEMPTS = 3;

/** Vast's answer. `json` is undefined when the body is not JSON; a 429 is often plain text. */
export type VastAnswer = { status: number; json: unknown; words: string };

/** Returns whether Vast says itself that the call failed, which it may under a status of success: the rest then proves nothing. */
export const hasFailed = ({ json }: VastAnswer) =>
  (json as { success?: unknown } | null | undefined)?.success === false;

/** Vast gave no answer to a call. */
export class VastUnreachable extends Unanswered {}

export type VastApi = {
  /** Makes one call as soon as the rate limit allows. Throws VastUnreachable. */
  call(
    endpoint: VastEndpoint,
    method: 'GET' | 'POST' | 'PUT' | 'DELETE',
    path: string,
    body?: unknown,
  ): Promise<VastAnswer>;
  /** Makes a call that changes nothing in the same way; it is repeated after a 429. */
  read(endpoint: VastEndpoint, method: 'GET' | 'POST', path: string, body?: unknown): Promise<VastAnswer>;
  /** Returns whether a call of this endpoint would have to wait for the rate limit. */
  isBusy(endpoint: VastEndpoint): boolean;
  close(): Promise<void>;
};

/** Opens the HTTP API of Vast. The key is sent in the header alone, never in a URL, a reason or a log. */
export function openVastApi(
  baseUrl: string,
  apiKey: string,
  { spacing, timeLimits }: { spacing: Spacing; timeLimits: VastTimeLimits },
): VastApi {
  const { origin, pathname } = new URL(baseUrl);
  const prefix = pathname.replace(/\/$/, '');
  const kept = openWatchedPool(origin, { pipelining: 1, connectMilliseconds: CONNECT_MILLISECONDS });
  // A create gets a new connection: a kept one may have died, and would leave the outcome unknown.
  const fresh = openWatchedPool(origin, { pipelining: 0, connectMilliseconds: CONNECT_MILLISECONDS });
  const turn = createTurns(spacing);
  const closing = new AbortController();
  const clean = (text: string) => redact(text).replaceAll(apiKey, '[redacted]').slice(0, REASON_CHARACTERS_MAX);

  async function send(
    endpoint: VastEndpoint,
    method: Dispatcher.HttpMethod,
    path: string,
    body: unknown,
  ): Promise<VastAnswer> {
    const endTurn = await turn.take(endpoint, closing.signal);
    if (!endTurn) throw new VastUnreachable(`vast: too many calls are waiting (${endpoint})`, false);
    // A read may be repeated after a 429; a create may not, so its interval counts from the answer to the last one.
    if (endpoint !== 'create') endTurn();
    const limit = endpoint === 'create' ? timeLimits.create : timeLimits.other;
    const pool = endpoint === 'create' ? fresh : kept;
    try {
      const request = {
        path: prefix + path,
        method,
        headers: {
          authorization: `Bearer ${apiKey}`,
          accept: 'application/json',
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        body: body === undefined ? null : JSON.stringify(body),
      };
      return await pool.ask(request, limit, async ({ statusCode: status, body: answer }) => {
        const { json, beginning } = await readJsonAnswer(answer, ANSWER_BYTES_MAX, parse);
        return { status, json, words: clean(`${status} ${beginning.replace(/\s+/g, ' ').trim()}`.trim()) };
      });
    } catch (error) {
      const { message, sent } = error as Unanswered;
      throw new VastUnreachable(
        sent ? `vast: ${endpoint}: ${clean(message)}` : `vast cannot be reached (${clean(message)})`,
        sent,
      );
    } finally {
      endTurn();
    }
  }

  return {
    call: (endpoint, method, path, body) => send(endpoint, method, path, body),
    async read(endpoint, method, path, body) {
      for (let attempt = 1; ; attempt++) {
        const answer = await send(endpoint, method, path, body);
        if (answer.status !== 429 || attempt === READ_ATTEMPTS) return answer;
        await sleep(spacing[endpoint]);
      }
    },
    isBusy: turn.isBusy,
    async close() {
      closing.abort();
      await Promise.all([kept.close(), fresh.close()]);
    },
  };
}

/** Creates turns per endpoint, one at a time. The next turn starts its `spacing` after the last one was ended. */
function createTurns(spacing: Spacing) {
  const lines = new Map<VastEndpoint, Promise<void>>();
  return {
    isBusy: (endpoint: VastEndpoint) => lines.has(endpoint),
    /**
     * Waits for a turn and returns the function that ends it, or undefined when the wait is too long or the API is
     * closing.
     */
    async take(endpoint: VastEndpoint, closing: AbortSignal): Promise<(() => void) | undefined> {
      const before = lines.get(endpoint) ?? Promise.resolve();
      const end = Promise.withResolvers<void>();
      const line = before.then(() => end.promise);
      lines.set(endpoint, line);
      void line.then(() => {
        if (lines.get(endpoint) === line) lines.delete(endpoint);
      });
      const come = before.then(() => true);
      if (!(await deadline(come, TURN_MILLISECONDS_MAX[endpoint], () => false, closing))) {
        end.resolve();
        return undefined;
      }
      let hasEnded = false;
      return () => {
        if (!hasEnded) setTimeout(end.resolve, spacing[endpoint]).unref();
        hasEnded = true;
      };
    },
  };
}

/** Parses a value. Prices stay exact: they are kept as the digits that were sent, never as a binary fraction. */
function parse(text: string, name: string | undefined): unknown {
  const value: unknown = parseJson(text);
  return name === 'dph_total' && typeof value === 'number' ? text : value;
}
