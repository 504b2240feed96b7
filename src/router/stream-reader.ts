import { generatedBytes } from './generated.ts';
import { DONE, DONE_EVENT, errorIn, type SseRun } from './sse.ts';
import { readUsage, type Usage } from './usage.ts';

/**
 * The treatment of an event, or of several of plain text: forward it (`pass`), hold it back until the charge is on disk
 * (`usage`), drop it, stop forwarding (`error`), or end.
 */
export type Reading = 'pass' | 'usage' | 'drop' | 'error' | 'end';

/** The report of a stream so far. */
export type Heard = {
  /** The last usage that could be read, unless text followed it: then it counts less than what was delivered. */
  usage: Usage | undefined;
  /** An upper bound of the completion tokens delivered. */
  tokensDelivered: number;
  /** True if it is complete: `[DONE]`, a finish reason for every choice, or a usage without choices after all text. */
  isWhole: boolean;
};

export type StreamReader = {
  read(event: SseRun): Reading;
  heard(): Heard;
  /** Returns what ends the stream for the client, once it is whole. */
  end(): Buffer;
};

/** Reads a stream of `choices` answers chunk by chunk for its usage and its end. */
export function createStreamReader(choices: number): StreamReader {
  const finished = new Set<unknown>();
  let usage: Usage | undefined;
  let bytes = 0;
  /** The number of them that the usage can have counted. */
  let countedBytes = 0;
  let isEnded = false;
  /** A usage without choices has arrived, with no choices after it. */
  let isCounted = false;
  let hasFailed = false;
  let usageSinceError: Usage | undefined;
  const isWhole = () => isEnded || isCounted || finished.size >= choices;

  return {
    read(event) {
      if (event.textBytes !== undefined) {
        if (hasFailed) return 'drop';
        bytes += event.textBytes;
        isCounted = false;
        return 'pass';
      }
      const { data } = event;
      if (data === undefined) return 'pass'; // A comment.
      if (data === DONE) {
        if (!hasFailed) isEnded = true;
        return 'end';
      }
      const json = parse(data);
      const error = errorIn(json);
      if (error) hasFailed = true;
      const given = (json as { usage?: unknown } | undefined)?.usage ?? undefined;
      const counted = given === undefined ? undefined : readUsage(json, 'chat');
      if (counted) usage = counted;
      if (hasFailed) {
        usageSinceError = counted ?? usageSinceError;
        return error ? 'error' : 'drop';
      }
      const list = (json as { choices?: unknown } | undefined)?.choices;
      const isBare = Array.isArray(list) && list.length === 0;
      if (isBare) {
        if (counted) {
          isCounted = true;
          countedBytes = bytes;
        }
        return counted ? 'usage' : given === undefined ? 'pass' : 'drop';
      }
      isCounted = false;
      bytes += generatedBytes(json);
      if (counted) countedBytes = bytes;
      if (Array.isArray(list))
        for (const it of list as ({ index?: unknown; finish_reason?: unknown } | null)[])
          if (it?.finish_reason) finished.add(it.index ?? 0);
      return 'pass';
    },
    heard() {
      const whole = isWhole();
      const last = bytes > countedBytes ? undefined : usage;
      const tokensDelivered = Math.max(bytes, usage?.completionTokens ?? 0);
      return { usage: whole ? last : usageSinceError, tokensDelivered, isWhole: whole };
    },
    end: () => DONE_EVENT,
  };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
