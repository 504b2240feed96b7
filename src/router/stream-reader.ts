import { type ReadRun, readEvent } from './answer-data.ts';
import { DONE, DONE_EVENT } from './sse.ts';
import { type Counts, mergeCounts, readUsage, usageIn } from './usage.ts';

/**
 * The treatment of an event, or of several of plain text: forward it (`pass`), hold it back until the charge is on disk
 * (`usage`), drop it, stop forwarding (`error`), or end.
 */
export type Reading = 'pass' | 'usage' | 'drop' | 'error' | 'end';

/** The report of a stream so far. */
export type Heard = {
  /** All reported usage: the largest of each count. */
  counts: Counts | undefined;
  /** True if the completion was counted at its end: no text followed, or an error had come before. */
  isCounted: boolean;
  /** An upper bound of the completion tokens delivered: the bytes of their text. */
  tokensDelivered: number;
  /** True if an error stated that the context of the model is full. */
  isContextFull?: true;
  /** True if it is complete: `[DONE]`, a finish reason for every choice, or a usage without choices after all text. */
  isWhole: boolean;
};

export type StreamReader = {
  read(event: ReadRun): Reading;
  heard(): Heard;
  /** Returns the bytes that end the stream for the client, once it is whole. */
  end(): Buffer;
};

/** Reads a stream of `choices` answers chunk by chunk for its usage and its end. */
export function createStreamReader(choices: number): StreamReader {
  const finished = new Set<unknown>();
  let counts: Counts | undefined;
  let bytes = 0;
  /** The bytes of text that the last count of the completion can have covered. */
  let countedBytes = -1;
  let isEnded = false;
  /** A usage without choices has arrived, with no choices after it. */
  let isCounted = false;
  let hasFailed = false;
  let isCountedSinceError = false;
  let isContextFull = false;
  const isWhole = () => isEnded || isCounted || finished.size >= choices;

  return {
    read(event) {
      if (event.textBytes !== undefined) {
        if (hasFailed) return 'drop';
        bytes += event.textBytes;
        isCounted = false;
        return 'pass';
      }
      const content = event.content ?? readEvent(event, 'chat');
      if (content === undefined) return 'pass'; // A comment.
      if (content === DONE) {
        if (!hasFailed) isEnded = true;
        return 'end';
      }
      const { error, choices: list } = content;
      const given = content.isUsageOfChoice && choices > 1 ? undefined : content.usage;
      if (error) {
        hasFailed = true;
        isContextFull ||= error.isContextFull;
      }
      if (given) counts = mergeCounts(counts, given);
      const countsAnswer = given !== undefined && usageIn(given, 'chat').completionTokens !== undefined;
      if (hasFailed) {
        isCountedSinceError ||= countsAnswer;
        return error ? 'error' : 'drop';
      }
      if (list === 'none') {
        if (countsAnswer) countedBytes = bytes;
        const isRead = readUsage({ usage: given }, 'chat') !== undefined;
        isCounted ||= isRead;
        return isRead ? 'usage' : given === undefined ? 'pass' : 'drop';
      }
      isCounted = false;
      bytes += content.generatedBytes;
      if (countsAnswer) countedBytes = bytes;
      for (const it of content.finished) if (finished.size < choices) finished.add(it);
      return 'pass';
    },
    heard() {
      const whole = isWhole();
      const isLast = whole ? bytes <= countedBytes : isCountedSinceError;
      return {
        counts,
        isCounted: isLast,
        tokensDelivered: bytes,
        isWhole: whole,
        ...(isContextFull ? { isContextFull } : {}),
      };
    },
    end: () => DONE_EVENT,
  };
}
