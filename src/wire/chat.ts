import * as v from 'valibot';
import { CHAT_MEMBERS, CHOICE_COUNT_MAX } from '../router/measure.ts';
import { wholeNumber } from './parts.ts';

/** Maximum number of messages of a request; checked before any of them is validated. */
const MESSAGE_COUNT_MAX = 10_000;

export const Messages = v.pipe(
  v.array(v.unknown(), 'must be an array of objects'),
  v.minLength(1, 'must have at least one message'),
  // The API document uses only the first array schema, so the item type is added here as keywords.
  Object.assign(
    v.maxLength<unknown[], number, string>(MESSAGE_COUNT_MAX, `must have at most ${MESSAGE_COUNT_MAX} messages`),
    {
      keywords: { items: { type: 'object', additionalProperties: true } },
    },
  ),
  v.array(v.record(v.string(), v.unknown(), 'must be an object')),
);

/** Members that are accepted with some values only, for the API document (`measureChat`). */
const LIMITED = {
  n: { type: ['integer', 'null'], minimum: 1, maximum: CHOICE_COUNT_MAX },
  max_completion_tokens: { type: ['integer', 'null'], minimum: 1 },
  store: { anyOf: [{ const: false }, { type: 'null' }] },
  service_tier: { anyOf: [{ enum: ['auto', 'default'] }, { type: 'null' }] },
  modalities: {
    anyOf: [{ type: 'array', items: { const: 'text' }, minItems: 1, maxItems: 1 }, { type: 'null' }],
  },
};

/**
 * Body of POST /v1/chat/completions (interface, section 4). Other members are checked once the model is known: any that
 * is not on the priced allow-list is refused with `unsupported_parameter`. The API document lists them.
 */
export const ChatBody = Object.assign(
  v.looseObject({
    model: v.pipe(v.string('must be a string'), v.minLength(1, 'must not be empty')),
    messages: Messages,
    max_tokens: v.nullish(wholeNumber(1, Number.MAX_SAFE_INTEGER)),
    stream: v.nullish(v.literal(false, 'must be false or left out')),
  }),
  {
    keywords: {
      properties: { ...Object.fromEntries(CHAT_MEMBERS.map((it) => [it, {}])), ...LIMITED },
      additionalProperties: false,
    },
  },
);

const Choice = v.looseObject({
  index: v.optional(v.number()),
  message: v.optional(v.looseObject({ role: v.optional(v.string()), content: v.nullish(v.string()) })),
  finish_reason: v.nullish(v.string()),
});

/** The upstream's answer, unchanged. */
export const ChatCompletion = v.looseObject({
  id: v.optional(v.string()),
  object: v.optional(v.string()),
  model: v.optional(v.string()),
  choices: v.optional(v.array(Choice)),
  usage: v.nullish(v.looseObject({ prompt_tokens: v.number(), completion_tokens: v.number() })),
});
