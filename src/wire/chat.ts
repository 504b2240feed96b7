import * as v from 'valibot';
import { wholeNumber } from './parts.ts';

/** The most messages of a request; checked before any of them is validated. */
const MESSAGE_COUNT_MAX = 10_000;

export const Messages = v.pipe(
  v.array(v.unknown(), 'must be an array of objects'),
  v.minLength(1, 'must have at least one message'),
  // The API document uses only the first array schema, so the item type is added here as keywords.
  Object.assign(
    v.maxLength<unknown[], number, string>(MESSAGE_COUNT_MAX, `must have at most ${MESSAGE_COUNT_MAX} messages`),
    {
      keywords: { items: { type: 'object' } },
    },
  ),
  v.array(v.record(v.string(), v.unknown(), 'must be an object')),
);

/**
 * Body of POST /v1/chat/completions (interface, section 4). Other members are checked once the model is known: any that
 * is not on the priced allow-list is refused with `unsupported_parameter`.
 */
export const ChatBody = v.looseObject({
  model: v.pipe(v.string('must be a string'), v.minLength(1, 'must not be empty')),
  messages: Messages,
  max_tokens: v.nullish(wholeNumber(1, Number.MAX_SAFE_INTEGER)),
  stream: v.nullish(v.literal(false, 'must be false or left out')),
});

/** The upstream's answer, unchanged. */
export const ChatCompletion = v.looseObject({
  id: v.optional(v.string()),
  object: v.optional(v.string()),
  model: v.optional(v.string()),
  choices: v.optional(v.array(v.looseObject({}))),
  usage: v.optional(v.looseObject({ prompt_tokens: v.number(), completion_tokens: v.number() })),
});
