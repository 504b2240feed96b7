import type { NativeWire } from '../config/router.ts';
import { readEvent } from './answer-data.ts';
import { DONE } from './sse.ts';
import type { Heard, Reading, StreamReader } from './stream-reader.ts';
import { type Counts, mergeCounts, mergeMessagesCounts, usageIn } from './usage.ts';

/** The end of a message whose stream gave its stop reason but ended without its last event. */
const MESSAGE_END = Buffer.from('event: message_stop\ndata: {"type":"message_stop"}\n\n');

/** Reads a stream for its usage and its end. */
export function createNativeReader(wire: NativeWire): StreamReader {
  const merge = wire === 'messages' ? mergeMessagesCounts : mergeCounts;
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
    counts = merge(counts, given);
    if (usageIn(given, wire).completionTokens === undefined) return;
    countedBytes = bytes;
    isCountedSinceError = hasFailed;
  }

  return {
    read(event): Reading {
      const content = event.content ?? readEvent(event, wire);
      if (content === undefined) return hasFailed ? 'drop' : 'pass'; // A comment.
      if (content === DONE) return isStopped || hasFailed ? 'end' : 'drop';
      if (content.error) {
        hasFailed = true;
        isContextFull ||= content.error.isContextFull;
      }
      if (content.usage) count(content.usage);
      if (hasFailed) return content.error ? 'error' : 'drop';
      if (content.isLast) {
        end = event.raw;
        return 'end';
      }
      if (content.stops) isStopped = true;
      bytes += content.generatedBytes;
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
