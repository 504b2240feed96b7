import type { ServerResponse } from 'node:http';
import { turnWhenDue } from '../base/turn.ts';
import type { Listener } from '../chat/stream.ts';

/** A response of server-sent events, written directly to the client's connection. */
export type EventStream = Listener & {
  begin(headers?: Record<string, string>): void;
  hasBegun(): boolean;
  /** Ends the stream, even if it has not begun: later writes are dropped. */
  end(): void;
};

/**
 * Opens an event stream on a response. `headers` are sent with the first byte. Once the client has disconnected, writes
 * are dropped and resolve at once. A client that reads nothing for `stallMilliseconds` is disconnected.
 */
export function openEventStream(
  response: ServerResponse,
  headers: () => Record<string, string>,
  stallMilliseconds: number,
): EventStream {
  let begun = false;
  let hasEnded = false;
  // Several writes may wait: a stopping server writes its last event while the stream itself waits for the client.
  let waiting: (() => void)[] = [];
  const release = () => {
    for (const go of waiting) go();
    waiting = [];
  };
  response.on('close', release);
  response.on('drain', () => {
    response.socket?.setTimeout(0);
    release();
  });
  const isGone = () => hasEnded || response.closed || response.destroyed;

  return {
    hasBegun: () => begun,
    begin(more: Record<string, string> = {}) {
      begun = true;
      if (isGone()) return;
      response.writeHead(200, {
        ...headers(),
        'content-type': 'text/event-stream; charset=utf-8',
        'x-accel-buffering': 'no', // Proxies that buffer would turn a stream into one late answer.
        ...more,
      });
      response.flushHeaders();
    },
    write(bytes) {
      if (isGone() || response.write(bytes)) return undefined;
      // Node closes the connection when the client has read nothing for this long, whatever else is written meanwhile.
      if (!waiting.length) response.socket?.setTimeout(stallMilliseconds);
      return new Promise((resolve) => waiting.push(resolve));
    },
    end() {
      if (begun && !isGone()) {
        response.end();
        response.socket?.setTimeout(stallMilliseconds); // The client has to read the rest, too.
      }
      hasEnded = true;
    },
  };
}

/** Writes pieces one after the other as the client reads them, and yields to other work between them. */
export async function writePieces(
  stream: Pick<EventStream, 'write'>,
  pieces: Iterable<Buffer | string>,
): Promise<void> {
  for (const piece of pieces) {
    await stream.write(asBytes(piece));
    await turnWhenDue();
  }
}

export const asBytes = (piece: Buffer | string): Buffer => (typeof piece === 'string' ? Buffer.from(piece) : piece);
