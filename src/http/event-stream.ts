import type { ServerResponse } from 'node:http';
import type { Listener } from '../chat/stream.ts';

/** An answer of server-sent events, written straight to the client's connection. */
export type EventStream = Listener & {
  begin(headers?: Record<string, string>): void;
  hasBegun(): boolean;
  /** The end, also of a stream that has not begun and never will: nothing that comes later is written. */
  end(): void;
};

/**
 * `headers` go out with the first byte. Nothing is written, and nothing waited for, once the client has gone; one that
 * takes nothing for `stallMilliseconds` has gone.
 */
export function openEventStream(
  response: ServerResponse,
  headers: () => Record<string, string>,
  stallMilliseconds: number,
): EventStream {
  let begun = false;
  let over = false;
  // More than one may wait: when the server stops, its last word comes while the stream itself waits for the client.
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
  const isGone = () => over || response.closed || response.destroyed;

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
      // Node's own measure: when not one byte was taken for so long, the connection ends.
      response.socket?.setTimeout(stallMilliseconds);
      return new Promise((resolve) => waiting.push(resolve));
    },
    end() {
      if (begun && !isGone()) {
        response.end();
        response.socket?.setTimeout(stallMilliseconds); // The last of it has to be taken too.
      }
      over = true;
    },
  };
}
