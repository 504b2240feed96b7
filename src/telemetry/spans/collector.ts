import { Pool } from 'undici';
import type { OpenTelemetrySettings } from '../../config/opentelemetry.ts';
import { containedConnector } from '../../net/contained-connector.ts';
import { readBounded } from '../../net/read-bounded.ts';
import { rejectedCount } from './otlp.ts';

const CONNECT_MILLISECONDS = 5000;
const ANSWER_BYTES_MAX = 16 * 1024;
/** Statuses after which the same request may be sent again (OTLP 1.x, "Retryable Response Codes"). */
const RETRYABLE = new Set([429, 502, 503, 504]);

export type Exported =
  | { kind: 'accepted'; rejectedCount: number }
  /** The request will never be accepted. */
  | { kind: 'refused'; reason: string }
  | { kind: 'failed'; reason: string; retryAfterSeconds?: number | undefined };

export type Collector = {
  /** Posts one request. Never throws. */
  send(body: string): Promise<Exported>;
  /** Aborts a running request. */
  close(): Promise<void>;
};

/** Opens the connection to a collector. It follows no redirect. */
export function openCollector({ endpoint, headers, timeout_seconds: seconds }: OpenTelemetrySettings): Collector {
  const { origin, pathname } = new URL(`${endpoint}/v1/traces`);
  const pool = new Pool(origin, {
    connections: 1,
    pipelining: 1,
    connect: containedConnector(Math.min(CONNECT_MILLISECONDS, seconds * 1000)),
  });
  const own = Object.entries(headers).map(([name, value]) => [name, value.reveal()] as const);
  const sent = { ...Object.fromEntries(own), 'content-type': 'application/json', 'user-agent': 'purser' };
  return {
    async send(body) {
      const signal = AbortSignal.timeout(seconds * 1000);
      try {
        const response = await pool.request({ path: pathname, method: 'POST', headers: sent, body, signal });
        const { statusCode: status } = response;
        const answer = await readBounded(response.body, ANSWER_BYTES_MAX);
        if (status >= 200 && status < 300)
          return { kind: 'accepted', rejectedCount: rejectedCount(answer?.toString('utf8') ?? '') };
        const reason = `answered ${status}`;
        if (!RETRYABLE.has(status)) return { kind: 'refused', reason };
        const after = Number(response.headers['retry-after']);
        return { kind: 'failed', reason, retryAfterSeconds: after > 0 ? after : undefined };
      } catch (error) {
        const { code, name } = error as NodeJS.ErrnoException;
        return {
          kind: 'failed',
          reason: signal.aborted ? `no answer within ${seconds} s` : `cannot be reached (${code ?? name})`,
        };
      }
    },
    close: () => pool.destroy(),
  };
}
