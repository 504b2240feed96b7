import { formatDecimal } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';

/** Prices of one model in USD per token, per request and per image: exact decimals, as `pricing` of a model takes them. */
type ListedPrices = {
  prompt?: string;
  completion?: string;
  request?: string;
  image?: string;
  input_cache_read?: string;
  input_cache_write?: string;
  internal_reasoning?: string;
};
export type ListedModel = {
  /** The model's name at its server. */
  upstreamModel: string;
  kind: 'chat' | 'embeddings' | 'rerank';
  prices: ListedPrices;
  /** True if the list has rates for long prompts, which are not imported: they are only named. */
  hasTiers: boolean;
  contextLength: number | undefined;
  maxOutputTokens: number | undefined;
};

/** Decimals of a price per token that a setting may have. Finer prices are rounded up: nothing is sold at a loss. */
const DECIMALS = 15;

type PriceEntry = Record<string, unknown>;
const isRecord = (it: unknown): it is PriceEntry => typeof it === 'object' && it !== null && !Array.isArray(it);
const count = (it: unknown) => (Number.isSafeInteger(it) && (it as number) > 0 ? (it as number) : undefined);

/**
 * Reads a price list by its names of models: LiteLLM's model_prices_and_context_window.json, or the answer of OpenRouter's GET
 * /api/v1/models. Leaves out models that are neither chat nor embeddings, or without a token price. Throws an Error for other
 * files.
 */
export function readPriceList(text: string): Map<string, ListedModel> {
  let list: unknown;
  try {
    list = parseJson(text);
  } catch (error) {
    throw new Error(`it is not JSON (${(error as Error).message})`, { cause: error });
  }
  const ofOpenRouter = isRecord(list) && Array.isArray(list.data) ? list.data.filter(isRecord) : undefined;
  const models = ofOpenRouter
    ? ofOpenRouter.flatMap((it) => (typeof it.id === 'string' ? [[it.id, fromOpenRouter(it.id, it)] as const] : []))
    : isRecord(list)
      ? Object.entries(list).flatMap(([name, it]) => (isRecord(it) ? [[name, fromLiteLlm(name, it)] as const] : []))
      : [];
  const priced = models.flatMap(([name, it]) => (it?.prices.prompt === undefined ? [] : [[name, it] as const]));
  if (!priced.length) throw new Error('it has no prices in the shape of LiteLLM or OpenRouter');
  return new Map(priced);
}

function fromOpenRouter(id: string, it: PriceEntry): ListedModel {
  const pricing = isRecord(it.pricing) ? it.pricing : {};
  const best = isRecord(it.top_provider) ? it.top_provider : {};
  const special = ['request', 'image', 'input_cache_read', 'input_cache_write', 'internal_reasoning'] as const;
  const prices: ListedPrices = {};
  for (const name of ['prompt', 'completion'] as const) set(prices, name, pricing[name]);
  for (const name of special) setSpecial(prices, name, pricing[name]);
  return {
    upstreamModel: id,
    kind: 'chat',
    prices,
    hasTiers: false,
    contextLength: count(best.context_length) ?? count(it.context_length),
    maxOutputTokens: count(best.max_completion_tokens),
  };
}

const LITELLM_MODES: Record<string, ListedModel['kind']> = {
  chat: 'chat',
  responses: 'chat',
  embedding: 'embeddings',
  rerank: 'rerank',
};

function fromLiteLlm(name: string, it: PriceEntry): ListedModel | undefined {
  const kind = LITELLM_MODES[String(it.mode ?? 'chat')];
  if (!kind || name === 'sample_spec') return undefined;
  const prices: ListedPrices = {};
  set(prices, 'prompt', it.input_cost_per_token);
  if (kind === 'chat') set(prices, 'completion', it.output_cost_per_token);
  setSpecial(prices, 'input_cache_read', it.cache_read_input_token_cost);
  setSpecial(prices, 'input_cache_write', it.cache_creation_input_token_cost);
  setSpecial(prices, 'internal_reasoning', it.output_cost_per_reasoning_token);
  const prefix = `${it.litellm_provider}/`;
  return {
    upstreamModel: name.startsWith(prefix) ? name.slice(prefix.length) : name,
    kind,
    prices,
    hasTiers: Object.keys(it).some((key) => /^input_cost_per_token_above_\d+k_tokens$/.test(key)),
    contextLength: count(it.max_input_tokens) ?? count(it.max_tokens),
    maxOutputTokens: count(it.max_output_tokens),
  };
}

function set(prices: ListedPrices, name: keyof ListedPrices, value: unknown): void {
  const exact = exactDecimal(value);
  if (exact !== undefined) prices[name] = exact;
}

/** A special rate of 0 means that the list does not know one; without it the plain rate holds. */
function setSpecial(prices: ListedPrices, name: keyof ListedPrices, value: unknown): void {
  if (Number(value) > 0) set(prices, name, value);
}

/** No price needs more digits, and the reckoning of a million of them takes seconds. */
const NUMBER = /^(\d{1,40})(?:\.(\d{1,40}))?(?:e([+-]?\d{1,3}))?$/i;

/**
 * Formats a number of JSON, or a decimal as text, as a plain decimal with at most 15 decimals, rounded up. Returns undefined
 * for anything else, and for a negative one: OpenRouter writes -1 where a price varies.
 */
export function exactDecimal(value: unknown): string | undefined {
  const match = NUMBER.exec(String(value));
  if (!match || (typeof value !== 'string' && typeof value !== 'number')) return undefined;
  const [, whole = '0', fraction = '', exponent = '0'] = match;
  const shift = DECIMALS + Number(exponent) - fraction.length;
  const digits = BigInt(whole + fraction);
  if (shift >= 0) return formatDecimal(digits * 10n ** BigInt(shift), DECIMALS, 0);
  const unit = 10n ** BigInt(-shift);
  return formatDecimal((digits + unit - 1n) / unit, DECIMALS, 0);
}
