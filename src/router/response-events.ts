import type { Json } from '../base/parse-json.ts';
/**
 * The events of an item in OpenAI's Responses: its beginning, each of its texts, its end. A text belongs to a part of the item or,
 * in a call, to the item itself, in the role of the part.
 */

export type ResponseEvent = Json & { type: string };

/**
 * The names in the events of a text, by the type of its part: `event` begins the names of the text events, `member` holds
 * the text, and `around` begins the names of the events that open and close the part.
 */
const TEXTS = new Map<unknown, { event: string; member: string; around?: string }>([
  ['output_text', { event: 'response.output_text', member: 'text', around: 'response.content_part' }],
  ['refusal', { event: 'response.refusal', member: 'refusal', around: 'response.content_part' }],
  ['reasoning_text', { event: 'response.reasoning_text', member: 'text', around: 'response.content_part' }],
  [
    'summary_text',
    { event: 'response.reasoning_summary_text', member: 'text', around: 'response.reasoning_summary_part' },
  ],
  ['function_call', { event: 'response.function_call_arguments', member: 'arguments' }],
  ['custom_tool_call', { event: 'response.custom_tool_call_input', member: 'input' }],
]);

/** The members of an item or a part that are empty in the event that opens it. */
const EMPTY: Json = {
  ...{ text: '', refusal: '', arguments: '', input: '' },
  ...{ summary: [], content: [], annotations: [], logprobs: [] },
};
const emptied = (it: Json): Json => ({
  ...it,
  ...Object.fromEntries(Object.entries(EMPTY).filter(([name]) => Object.hasOwn(it, name))),
});
const logprobsOf = ({ type, logprobs }: Json): Json => (type === 'output_text' ? { logprobs: logprobs ?? [] } : {});

/** Returns the event that opens an item, with empty texts and parts. */
export const itemAdded = (index: number, item: Json): ResponseEvent => ({
  type: 'response.output_item.added',
  output_index: index,
  item: { ...emptied(item), ...(item.status === undefined ? {} : { status: 'in_progress' }) },
});

/** Returns the event that closes an item, with its full content. */
export const itemDone = (index: number, item: Json): ResponseEvent => ({
  type: 'response.output_item.done',
  output_index: index,
  item,
});

/** Returns the events at the beginning of a part. `at` is the part's position, included in each event. */
export function partBegun(part: Json, at: Json): ResponseEvent[] {
  const { around } = TEXTS.get(part.type) ?? {};
  return around ? [{ type: `${around}.added`, ...at, part: emptied(part) }] : [];
}

/** Returns the events of a piece of the part's text. */
export function partGrown(part: Json, at: Json, delta: string): ResponseEvent[] {
  const { event } = TEXTS.get(part.type) ?? {};
  return event && delta ? [{ type: `${event}.delta`, ...at, delta, ...logprobsOf(part) }] : [];
}

/** Returns the events at the end of a part. */
export function partDone(part: Json, at: Json): ResponseEvent[] {
  const told = TEXTS.get(part.type);
  if (!told) return [];
  const { event, member, around } = told;
  const name = part.type === 'function_call' ? { name: part.name } : {};
  const done = { type: `${event}.done`, ...at, ...name, [member]: part[member], ...logprobsOf(part) };
  return around ? [done, { type: `${around}.done`, ...at, part }] : [done];
}

/** Returns the events of a complete item. Items other than messages and tool calls are sent as one event. */
export function eventsOfItem(index: number, item: Json): ResponseEvent[] {
  const isCall = TEXTS.has(item.type);
  if (!isCall && item.type !== 'message' && item.type !== 'reasoning')
    return [{ ...itemAdded(index, item), item }, itemDone(index, item)];
  const at = { item_id: item.id, output_index: index };
  const within = (list: unknown, name: string) =>
    Array.isArray(list) ? list.flatMap((part, i) => eventsOfPart(part ?? {}, { ...at, [name]: i })) : [];
  const inner = isCall
    ? eventsOfPart(item, at)
    : [...within(item.summary, 'summary_index'), ...within(item.content, 'content_index')];
  return [itemAdded(index, item), ...inner, itemDone(index, item)];
}

function eventsOfPart(part: Json, at: Json): ResponseEvent[] {
  const text = part[TEXTS.get(part.type)?.member ?? ''];
  const annotations = Array.isArray(part.annotations) ? part.annotations : [];
  return [
    ...partBegun(part, at),
    ...partGrown(part, at, typeof text === 'string' ? text : ''),
    ...annotations.map((annotation, annotation_index) => ({
      type: 'response.output_text.annotation.added',
      ...at,
      annotation_index,
      annotation,
    })),
    ...partDone(part, at),
  ];
}
