import type { Json } from '../base/parse-json.ts';
import { invalid, unsupported, wholeNumber } from './field-refusals.ts';
import { FREE_MEMBERS } from './free-members.ts';
import {
  CHOICE_COUNT_MAX,
  DROPPED_MEMBERS,
  inputsOf,
  type Measured,
  type MeasuredFor,
  namedBytes,
  refuseTooDeep,
  withoutNulls,
} from './measure.ts';
import { refuseReasoning } from './refused-content.ts';
import { textBytes } from './rendered.ts';

// Requests whose prompts are texts without a conversation: legacy completions, and the ranking of documents.

/** Members of a legacy completion that may be forwarded and cost nothing but their bytes. */
const COMPLETED = new Set<string>([
  ...['prompt', 'suffix', 'echo', 'best_of', 'temperature', 'top_p', 'frequency_penalty', 'presence_penalty'],
  ...['stop', 'seed', 'logit_bias', 'logprobs', 'user', ...FREE_MEMBERS],
]);
/** Members that are read here and rewritten, or not passed on. */
const READ = new Set(['model', 'stream', 'n', 'max_tokens', 'metadata', ...DROPPED_MEMBERS]);
/** Answers of one request, for all of its prompts. */
const COMPLETION_COUNT_MAX = 2048;
/** Members of a ranking that may be forwarded. Left out are those that cut a document into pieces, each with the query. */
const RANKED = new Set([
  'query',
  'documents',
  'top_n',
  'return_documents',
  'truncate_prompt_tokens',
  'max_tokens_per_doc',
]);
const DOCUMENT_COUNT_MAX = 2048;

/** Sorts the members of a request into those that every upstream gets and those that its settings name. Refuses all others. */
function sorted(
  { forward }: MeasuredFor,
  request: Readonly<Json>,
  known: ReadonlySet<string>,
  read: ReadonlySet<string>,
) {
  const forwarded: string[] = [];
  const byRoute: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(request)) {
    if (known.has(name)) forwarded.push(name);
    else if (forward.includes(name)) byRoute[name] = value;
    else if (!read.has(name)) throw unsupported(name);
  }
  return { forwarded, byRoute };
}

/**
 * Measures a legacy completion: each of its prompts with the other forwarded members, and the answers that are generated for
 * all of them, `best_of` for each. Throws as `measureChat` does.
 */
export function measureCompletion(model: MeasuredFor, raw: Readonly<Json>, stream: boolean): Measured {
  const request = withoutNulls(raw);
  const read = stream ? new Set([...READ, 'stream_options']) : READ;
  const { forwarded, byRoute } = sorted(model, request, COMPLETED, read);
  refuseReasoning(request.reasoning);
  if (request.suffix !== undefined && typeof request.suffix !== 'string') throw invalid('suffix', 'must be a string');
  const returned = wholeNumber(request, 'n', CHOICE_COUNT_MAX) ?? 1;
  const generated = wholeNumber(request, 'best_of', CHOICE_COUNT_MAX) ?? returned;
  if (generated < returned) throw invalid('best_of', 'must be at least n');
  if (stream && generated > returned) throw invalid('best_of', 'must not be above n in a stream');
  const inputs = inputsOf(request.prompt, model.enough, 'prompt');
  const choices = inputs.length * generated;
  if (choices > COMPLETION_COUNT_MAX)
    throw invalid('prompt', `asks for ${choices} answers, and at most ${COMPLETION_COUNT_MAX} are possible`);
  const others = { ...request, ...byRoute };
  const names = [...forwarded, ...Object.keys(byRoute)].filter((name) => name !== 'prompt');
  const more = refuseTooDeep(names.join(', '), () => namedBytes(others, names, model.enough));
  return {
    api: 'completions',
    prompts: inputs.map(({ bytes, tokens }) => ({ bytes: bytes + more, tokens })),
    messages: 1,
    tools: 0,
    images: 0,
    choices,
    outputTokens: wholeNumber(request, 'max_tokens'),
    forwarded,
    written: {
      ...(returned > 1 ? { n: returned } : {}),
      stream,
      ...(stream ? { stream_options: { include_usage: true } } : {}),
    },
    byRoute,
  };
}

/** Measures a ranking: a model reads the query once with each document. Throws as `measureChat` does. */
export function measureRanking(model: MeasuredFor, raw: Readonly<Json>): Measured {
  const request = withoutNulls(raw);
  const { forwarded, byRoute } = sorted(model, request, RANKED, new Set(['model']));
  if (typeof request.query !== 'string') throw invalid('query', 'must be a string');
  for (const name of ['top_n', 'truncate_prompt_tokens', 'max_tokens_per_doc']) wholeNumber(request, name);
  const { documents } = request;
  if (!Array.isArray(documents) || documents.length === 0) throw invalid('documents', 'must be a list of texts');
  if (documents.length > DOCUMENT_COUNT_MAX)
    throw invalid('documents', `must have at most ${DOCUMENT_COUNT_MAX} entries`);
  const names = Object.keys(byRoute);
  const query = textBytes(request.query, model.enough);
  const more = query + refuseTooDeep(names.join(', '), () => namedBytes(byRoute, names, model.enough));
  const prompts = documents.map((it, i) => ({ bytes: more + textBytes(documentText(it, i), model.enough), tokens: 0 }));
  const none = { messages: 0, tools: 0, images: 0, choices: 1, outputTokens: undefined, written: {} };
  return { api: 'rerank', ...none, prompts, forwarded, byRoute };
}

/** Returns the text of a document, which may be an object with nothing but the text. */
function documentText(document: unknown, at: number): string {
  if (typeof document === 'string') return document;
  if (typeof document !== 'object' || document === null) throw invalid(`documents.${at}`, 'must be a text');
  const { text, ...others } = document as Readonly<Json>;
  if (typeof text !== 'string') throw invalid(`documents.${at}.text`, 'must be a string');
  const [other] = Object.keys(others);
  if (other !== undefined) throw unsupported(`documents.${at}.${other}`);
  return text;
}
