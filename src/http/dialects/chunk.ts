import type { Json } from '../../base/parse-json.ts';
import { countsIn, findUsage } from '../../router/usage.ts';
import { choiceOf, textIn } from './blocks.ts';
import { isObject, objectOf, piecesOf } from './json.ts';

/** Texts are cut into pieces of this many characters, each a chunk of its own. */
const PIECE_LENGTH = 32 * 1024;
/** No model server sends a chunk with more parts or calls. */
const PART_COUNT_MAX = 10_000;

/**
 * Splits a chunk of a chat completion into several small ones with the same translation, without the members that are not
 * read. Throws for a chunk with more parts than any model server sends.
 */
export function plainChunks(json: unknown): Json[] {
  const { id, created } = objectOf(json);
  const usage = findUsage(json);
  const { delta, finish_reason, stop_reason } = choiceOf(json);
  const deltas = plainDeltas(objectOf(delta));
  const head = { id: short(id), created: typeof created === 'number' ? created : undefined };
  const last = { finish_reason: short(finish_reason), stop_reason: short(stop_reason) };
  const counts = usage === undefined ? {} : { usage: countsIn(usage) };
  return [
    ...deltas.map((it) => ({ ...head, choices: [{ delta: it }] })),
    { ...head, ...counts, choices: [{ delta: {}, ...last }] },
  ];
}

const SHORT_LENGTH = 1000;
const short = (value: unknown) => (typeof value === 'string' ? value.slice(0, SHORT_LENGTH) : undefined);

function plainDeltas(delta: Json): Json[] {
  const { content, refusal, reasoning, reasoning_content: thought, tool_calls: calls } = delta;
  const deltas: Json[] = [];
  const add = (made: Json) => {
    if (deltas.length === PART_COUNT_MAX) throw new Error('an event has more parts than any model server sends');
    deltas.push(made);
  };
  const addText = (name: string, text: string) => {
    for (const piece of piecesOf(text, PIECE_LENGTH)) add({ [name]: piece });
  };
  addText('reasoning', textIn(thought) || textIn(reasoning));
  if (Array.isArray(content))
    for (const part of content) {
      addText('reasoning', textIn(objectOf(part).thinking));
      addText('content', textIn(objectOf(part).text));
    }
  else addText('content', textIn(content));
  addText('refusal', textIn(refusal));
  if (Array.isArray(calls))
    for (const [position, it] of calls.entries()) {
      const call = objectOf(it);
      const { name, arguments: given } = objectOf(call.function);
      const index = typeof call.index === 'number' ? call.index : (short(call.index) ?? position);
      const text = isObject(given) ? JSON.stringify(given) : typeof given === 'string' ? given : '';
      const [first = '', ...rest] = piecesOf(text, PIECE_LENGTH);
      const id = short(call.id);
      add({ tool_calls: [{ index, id, function: { name: short(name), arguments: first } }] });
      for (const piece of rest) add({ tool_calls: [{ index, id, function: { arguments: piece } }] });
    }
  return deltas;
}
