import type { NativeWire } from '../config/router.ts';
import { DONE } from './sse.ts';
import type { Heard, Reading, StreamReader } from './stream-reader.ts';
import { readEvent } from './told.ts';
import { type Counts, mergeCounts, toldIn } from './usage.ts';

/** The end of a message whose stream gave its stop reason but ended without its last event. */
const MESSAGE_END = Buffer.from('event: message_stop\ndata: {"type":"message_stop"}\n\n');

/** Reads a stream for its usage and its end. */
export function createNativeReader(wire: NativeWire): StreamReader {
  /** Anthropic reports the prompt at the beginning and the answer at the end. */
  let counts: Counts | undefined;
  let bytes = 0;
  let countedBytes = -1;
  let end: Buffer | undefined;
  let isStopped = false;
  let hasFailed = false;
  let isCountedSinceError = false;
  let isContextFull = false;

  function count(given: Counts): void {
    counts = mergeCounts(counts, given);
    if (toldIn(given, wire).completionTokens === undefined) return;
    countedBytes = bytes;
    isCountedSinceError = hasFailed;
  }

  return {
    read(event): Reading {
      const said = event.said ?? readEvent(event, wire);
      if (said === undefined) return hasFailed ? 'drop' : 'pass'; // A comment.
      if (said === DONE) return isStopped || hasFailed ? 'end' : 'drop';
      if (said.error) {
        hasFailed = true;
        isContextFull ||= said.error.isContextFull;
      }
      if (said.usage) count(said.usage);
      if (hasFailed) return said.error ? 'error' : 'drop';
      if (said.isLast) {
        end = event.raw;
        return 'end';
      }
      if (said.stops) isStopped = true;
      bytes += said.generatedBytes;
      return 'pass';
    },
    heard(): Heard {
      const isWhole = end !== undefined || isStopped;
      return {
        counts,
        isCounted: isWhole ? bytes <= countedBytes : isCountedSinceError,
        tokensDelivered: bytes,
        isWhole,
        ...(isContextFull ? { isContextFull } : {}),
      };
    },
    end: () => end ?? MESSAGE_END,
  };
}
