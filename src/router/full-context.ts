import { type Json, wordOf } from '../base/parse-json.ts';

const objectOf = (value: unknown): Json => (typeof value === 'object' && value !== null ? (value as Json) : {});

/** Codes and types of OpenAI and llama.cpp. */
const NAMES = new Set(['context_length_exceeded', 'exceed_context_size_error']);
/** Sentences of OpenAI, vLLM, llama.cpp, SGLang, Anthropic, LM Studio, xAI, Google, Moonshot, MiniMax, Qwen, Ollama and Bedrock. */
const SENTENCES = [
  ...['maximum context length', 'maximum prompt length', "longer than the model's context length"],
  ...['longer than the maximum model length', 'too long to fit into the model', 'exceeds the context window'],
  ...['exceeds the available context size', 'prompt is too long', 'exceed context limit'],
  ...['greater than the context length', 'exceeds the maximum number of tokens', 'exceeded model token limit'],
  ...['context window exceeds limit', 'range of input length should be', 'exceeded max context length'],
  'input is too long for requested model',
];

/** Returns whether an error, in the shapes that model servers use, states that the prompt does not fit the model's context. */
export function tellsFullContext(json: unknown): boolean {
  const { error, response } = objectOf(json);
  return [json, error, objectOf(response).error].some((it) => {
    if (typeof it === 'string') return tellsSo(it);
    const { code, type, message, detail } = objectOf(it);
    return NAMES.has(wordOf(code)) || NAMES.has(wordOf(type)) || tellsSo(wordOf(message)) || tellsSo(wordOf(detail));
  });
}

/** A longer message is no sentence. */
const LENGTH_MAX = 2000;

function tellsSo(message: string): boolean {
  const text = message.slice(0, LENGTH_MAX).toLowerCase();
  return SENTENCES.some((it) => text.includes(it));
}
