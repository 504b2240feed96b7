import { parseJson } from '../base/parse-json.ts';
import type { UpstreamConfig } from '../config/router.ts';
import { readAnswerText } from '../net/read-bounded.ts';
import { request } from '../net/request.ts';

const LIST_MILLISECONDS = 10_000;
/** OpenRouter's list of some 400 models has 500 KB. */
const LIST_BYTES_MAX = 8 * 1024 * 1024;

/** An entry of an upstream's model list. */
export type StatedModel = { pricing: unknown; contextLength: number | undefined };

/**
 * Names of the context length in the model lists of OpenRouter, vLLM and SGLang, Groq, LM Studio, and llama.cpp
 * (`meta`).
 */
const CONTEXT_NAMES = ['context_length', 'max_model_len', 'context_window', 'max_context_length', 'n_ctx'];

/** Fetches an upstream's statements about its models, by their names there; empty if it makes none or the call fails. */
export async function statedModels(config: UpstreamConfig): Promise<Map<string, StatedModel>> {
  try {
    const response = await request(`${config.base_url}/models`, {
      headers: config.api_key ? { authorization: `Bearer ${config.api_key.reveal()}` } : {},
      signal: AbortSignal.timeout(LIST_MILLISECONDS),
    });
    return readStatedModels(parseJson(await readAnswerText(response.body, LIST_BYTES_MAX)));
  } catch {
    return new Map(); // The one-token request reports the fault of the upstream.
  }
}

/** Parses the response of GET /models. */
export function readStatedModels(answer: unknown): Map<string, StatedModel> {
  const data = (answer as { data?: unknown } | null)?.data;
  const list = Array.isArray(data) ? (data as ({ id?: unknown; pricing?: unknown; meta?: object } | null)[]) : [];
  return new Map(
    list.flatMap((it) => {
      if (typeof it?.id !== 'string') return [];
      const members = { ...it.meta, ...it } as Record<string, unknown>;
      const contextLength = CONTEXT_NAMES.map((name) => members[name]).find(
        (length): length is number => Number.isSafeInteger(length) && (length as number) > 0,
      );
      return [[it.id, { pricing: it.pricing, contextLength }] as const];
    }),
  );
}
