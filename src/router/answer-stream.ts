import { parseAnswer } from '../base/json-text.ts';
import { isWire } from '../config/router.ts';
import { eventsOfCompletion, eventsOfTexts } from './completion-events.ts';
import { type Api, eventsOfAnswer } from './native.ts';
import { createNativeReader } from './native-reader.ts';
import type { SseEvent } from './sse.ts';
import { createStreamReader, type Heard } from './stream-reader.ts';

/** The stream made of a complete answer. */
export type AnswerStream = {
  /** All events that are forwarded before the charge is on disk. */
  events: Buffer;
  usageEvent: Buffer | undefined;
  end: Buffer;
  heard: Heard;
  /** The reason why it broke off, if it did. */
  broken: string;
};

/**
 * Makes a stream of one complete, valid answer, for an upstream that does not stream. It breaks off where a completion
 * cannot be expressed in chunks.
 */
export function streamOfAnswer(bytes: Buffer, api: Api, choices: number): AnswerStream {
  const reader = isWire(api) ? createNativeReader(api) : createStreamReader(choices);
  const forwarded: Buffer[] = [];
  let usageEvent: Buffer | undefined;
  let broken = '';
  try {
    for (const event of eventsOf(bytes, api)) {
      const reading = reader.read(event);
      if (reading === 'pass') forwarded.push(event.raw);
      else if (reading === 'usage') usageEvent = event.raw;
      else if (reading === 'error') broken ||= 'the upstream reported an error in the middle of its stream';
      else if (reading === 'end') break;
    }
  } catch (error) {
    broken ||= (error as Error).message;
  }
  return { events: Buffer.concat(forwarded), usageEvent, end: reader.end(), heard: reader.heard(), broken };
}

function eventsOf(bytes: Buffer, api: Api): SseEvent[] {
  const answer = parseAnswer(bytes);
  if (isWire(api)) return eventsOfAnswer(api, answer);
  return api === 'completions' ? eventsOfTexts(answer) : eventsOfCompletion(answer);
}
