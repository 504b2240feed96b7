import { parseAnswer } from '../base/json-text.ts';
import type { Json } from '../base/parse-json.ts';
import type { NativeWire } from '../config/router.ts';
import { parseEvent } from '../router/answer-data.ts';
import { READINGS, type ReadBy } from '../router/apart.ts';
import { isAnswerOf, isLastEvent, isNativeEvent } from '../router/native.ts';
import { eventIn } from '../router/sse.ts';
import { plainChunks } from './dialects/chunk.ts';
import type { KeptState } from './dialects/dialect.ts';
import { objectOf } from './dialects/json.ts';
import { messagesDialect } from './dialects/messages.ts';
import { responsesDialect } from './dialects/responses.ts';

const WIRES = { messages: messagesDialect, responses: responsesDialect };

/** An event to translate, as chunks of plain data. Of an event that is already in the client's API, only this is read. */
type ReadChunk = { native: boolean; isLast: boolean; response: Json; chunks: unknown[] };

/** The ways to read the answers of model servers, and to translate them. */
export const ANSWER_READINGS = {
  ...READINGS,
  /** Writes a cost into the usage of a complete answer. */
  costed(bytes: Buffer, cost: number): Buffer {
    const answer = objectOf(parseAnswer(bytes));
    return Buffer.from(JSON.stringify({ ...answer, usage: { ...objectOf(answer.usage), cost } }));
  },
  /** Translates a complete answer to another API. Returns undefined for an answer that is already in that API. */
  translated(bytes: Buffer, wire: NativeWire, kept: KeptState, seed: string): Buffer | undefined {
    const json = parseAnswer(bytes);
    if (isAnswerOf(wire, json)) return undefined;
    return Buffer.from(JSON.stringify(WIRES[wire].answers(kept, seed).whole(json)));
  },
  /** Reads one large event for its translation. */
  chunk(raw: Buffer): ReadChunk {
    const json = parseEvent(eventIn(raw).data ?? '');
    const native = isNativeEvent(json);
    return {
      native,
      isLast: isLastEvent(json),
      response: native ? plainMembers(objectOf(objectOf(json).response)) : {},
      chunks: native ? [] : plainChunks(json),
    };
  },
};

export type AnswerReadings = ReadBy<typeof ANSWER_READINGS>;

const LENGTH_MAX = 1000;
const MEMBER_COUNT_MAX = 100;

/** Returns the short members that are neither lists nor objects. */
function plainMembers(json: Json): Json {
  const short = Object.entries(json).filter(
    ([name, value]) => name.length <= LENGTH_MAX && typeof value !== 'object' && String(value).length <= LENGTH_MAX,
  );
  return Object.fromEntries(short.slice(0, MEMBER_COUNT_MAX));
}
