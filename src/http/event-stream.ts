import type { ServerResponse } from 'node:http';
import type { Listener } from '../spend/stream.ts';

/** A client that takes nothing for so long is gone: the upstream's connection is not kept open for it. */
const STALL_MILLISECONDS = 60_000;

/** An answer of server-sent events, written straight to the client's connection. */
export type EventStream = Listener & {
  begin(headers?: Record<string, string>): void;
  hasBegun(): boolean;
  end(): void;
};

/** `headers` go out with the first byte. Nothing is written, and nothing waited for, once the client has gone. */
export function openEventStream(response: ServerResponse, headers: () => Record<string, string>): EventStream {
  let begun = false;
  let waiting: (() => void) | undefined;
  const release = () => {
    waiting?.();
    waiting = undefined;
  };
  response.on('drain', release);
  response.on('close', release);

  return {
    hasBegun: () => begun,
    begin(more: Record<string, string> = {}) {
      begun = true;
      if (response.closed || response.destroyed) return;
      response.writeHead(200, {
        ...headers(),
        'content-type': 'text/event-stream; charset=utf-8',
        'cache-control': 'no-cache',
        'x-accel-buffering': 'no', // Proxies that buffer would turn a stream into one late answer.
        ...more,
      });
      response.flushHeaders();
    },
    write(bytes) {
      if (response.closed || response.destroyed || response.write(bytes)) return undefined;
      return new Promise((resolve) => {
        const stalled = setTimeout(() => response.destroy(), STALL_MILLISECONDS);
        waiting = () => {
          clearTimeout(stalled);
          resolve();
        };
      });
    },
    end: () => void response.end(),
  };
}
