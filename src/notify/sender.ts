import { Pool } from 'undici';
import type { ReceiverConfig } from '../config/events.ts';
import { containedConnector } from '../net/contained-connector.ts';
import type { Message } from './message.ts';

const CONNECT_MILLISECONDS = 5000;
/** The status alone counts: no more than this is read of the body. */
const BODY_BYTES_MAX = 16 * 1024;

export type Delivered =
  | { kind: 'accepted' }
  /** `isDown` where the receiver can take nothing at the moment; otherwise it refused this one event. */
  | { kind: 'failed'; error: string; isDown: boolean };

export type Sender = {
  /** Posts one message. Never throws. */
  send(message: Message): Promise<Delivered>;
  /** Aborts a running request. */
  close(): Promise<void>;
};

/** Opens the connection to one receiver. It follows no redirect. */
export function openSender({ url, timeout_seconds: seconds }: ReceiverConfig): Sender {
  const { origin, pathname, search } = new URL(url.reveal());
  const pool = new Pool(origin, {
    connections: 1,
    pipelining: 1,
    connect: containedConnector(Math.min(CONNECT_MILLISECONDS, seconds * 1000)),
  });
  return {
    async send({ headers, body }) {
      const signal = AbortSignal.timeout(seconds * 1000);
      try {
        const response = await pool.request({ path: pathname + search, method: 'POST', headers, body, signal });
        const { statusCode: status } = response;
        await response.body.dump({ limit: BODY_BYTES_MAX, signal }).catch(() => {});
        if (status >= 200 && status < 300) return { kind: 'accepted' };
        return { kind: 'failed', error: `answered ${status}`, isDown: status >= 500 || status === 429 };
      } catch (error) {
        // Only a code: a message may repeat the address.
        const { code, name } = error as NodeJS.ErrnoException;
        const reason = signal.aborted ? `no answer within ${seconds} s` : `cannot be reached (${code ?? name})`;
        return { kind: 'failed', error: reason, isDown: true };
      }
    },
    close: () => pool.destroy(),
  };
}
