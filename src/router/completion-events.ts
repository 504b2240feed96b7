import type { Json } from '../base/parse-json.ts';
import { DONE, DONE_EVENT, eventOf, type SseEvent } from './sse.ts';

/**
 * Converts a complete chat completion into stream events, for an upstream that does not stream: a content chunk and a finish chunk
 * for each choice, then one for the usage. Throws without choices: chunks cannot express such an answer.
 */
export function eventsOfCompletion(completion: unknown): SseEvent[] {
  const { choices, usage, object: _, ...head } = completion as Json;
  if (!Array.isArray(choices)) throw new Error('the upstream answered without choices');
  const chunk = (rest: Json) => toEvent({ ...head, object: 'chat.completion.chunk', ...rest });
  const chunks = (choices as (Json | null)[]).flatMap((choice) => {
    const { message, finish_reason: reason, index = 0, ...rest } = choice ?? {};
    return [
      chunk({ choices: [{ index, delta: toDelta(message), ...rest, finish_reason: null }] }),
      chunk({ choices: [{ index, delta: {}, finish_reason: reason ?? 'stop' }] }),
    ];
  });
  return [...chunks, ...(usage === undefined ? [] : [chunk({ choices: [], usage })]), { raw: DONE_EVENT, data: DONE }];
}

/** Converts a complete legacy completion into stream events: a chunk for each choice, then one for the usage. */
export function eventsOfTexts(completion: unknown): SseEvent[] {
  const { choices, usage, ...head } = completion as Json;
  if (!Array.isArray(choices)) throw new Error('the upstream answered without choices');
  const chunks = (choices as (Json | null)[]).map((choice, i) => {
    const { index = i, finish_reason: reason, ...rest } = choice ?? {};
    return toEvent({ ...head, choices: [{ index, ...rest, finish_reason: reason ?? 'stop' }] });
  });
  const last = usage === undefined ? [] : [toEvent({ ...head, choices: [], usage })];
  return [...chunks, ...last, { raw: DONE_EVENT, data: DONE }];
}

/** Numbers the tool calls: in a stream, clients assemble them by index. */
function toDelta(message: unknown): unknown {
  if (typeof message !== 'object' || message === null) return {};
  const { tool_calls: calls } = message as { tool_calls?: unknown };
  return Array.isArray(calls) ? { ...message, tool_calls: calls.map((it, index) => ({ index, ...it })) } : message;
}

function toEvent(value: Json): SseEvent {
  return { raw: eventOf(value), data: JSON.stringify(value) };
}
