import type { Json } from '../base/parse-json.ts';

/**
 * Returns the bytes of text that a model generated in an answer or a chunk: content, refusals, reasoning and tool arguments, or a
 * legacy completion. A token covers at least one byte, so this bounds the delivered completion tokens.
 */
export function generatedBytes(answer: unknown): number {
  const choices = (answer as { choices?: unknown } | null)?.choices;
  if (!Array.isArray(choices)) return 0;
  let bytes = 0;
  for (const choice of choices as (Json | null)[]) {
    const message = choice?.delta ?? choice?.message;
    bytes += message === undefined ? bytesOfText(choice?.text) : bytesOfMessage(message);
  }
  return bytes;
}

function bytesOfMessage(message: unknown): number {
  if (typeof message !== 'object' || message === null) return 0;
  const { content, refusal, reasoning, reasoning_content, tool_calls: calls, function_call: call } = message as Json;
  // Some servers send the same reasoning under both names.
  let bytes =
    bytesOfText(content) + bytesOfText(refusal) + Math.max(bytesOfText(reasoning), bytesOfText(reasoning_content));
  if (Array.isArray(calls))
    for (const it of calls as (Json | null)[]) bytes += bytesOfArguments(it?.function) + bytesOfArguments(it?.custom);
  return call ? bytes + bytesOfArguments(call) : bytes;
}

function bytesOfArguments(call: unknown): number {
  const { arguments: given, input } = (call ?? {}) as Json;
  return bytesOfValue(given) + bytesOfText(input);
}

/** Counts what a call is given: a text, or an object in place of its JSON. */
export function bytesOfValue(given: unknown): number {
  if (typeof given === 'object' && given !== null) return Buffer.byteLength(JSON.stringify(given));
  return bytesOfText(given);
}

/** Counts a text, or a list of parts with text (Mistral's thinking has parts of its own). */
export function bytesOfText(value: unknown): number {
  if (typeof value === 'string') return Buffer.byteLength(value);
  if (Array.isArray(value)) return value.reduce((sum: number, it) => sum + bytesOfText(it), 0);
  if (typeof value !== 'object' || value === null) return 0;
  const { text, thinking } = value as Json;
  return bytesOfText(text) + bytesOfText(thinking);
}
