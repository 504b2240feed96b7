import * as v from 'valibot';
import type { RouterKey } from '../access/router-keys.ts';
import { TOKEN_PREFIX } from '../access/token.ts';
import type { Period } from '../base/calendar.ts';
import { formatUsd, Nanos, parseUsd } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { shownAvailable, type Wallet } from '../ledger/wallet.ts';
import { ChatBody, Messages } from './chat.ts';
import { Time, text } from './parts.ts';

const MODEL_COUNT_MAX = 1000;

/**
 * Body of POST /v1/router/key: a free-form object (interface, section 4). The members listed here restrict the key
 * (design, section 8); others are ignored.
 */
export const RouterKeyRequest = v.looseObject({
  models: v.nullish(
    v.pipe(
      v.array(text(1, 200), 'must be an array of model ids'),
      v.minLength(1, 'must name at least one model'),
      v.maxLength(MODEL_COUNT_MAX, `must name at most ${MODEL_COUNT_MAX} models`),
    ),
  ),
  max_price_usd: v.nullish(v.pipe(v.string('must be a decimal string'), v.check(isPrice, 'must be exact USD above 0'))),
});
export const RouterKeyAnswer = v.object({ api_key: v.string(), base_url: v.string(), expires_at: v.nullable(Time) });

function isPrice(text: string): boolean {
  try {
    return parseUsd(text) > 0n;
  } catch {
    return false;
  }
}

const Flag = v.nullish(v.boolean('must be true or false'));

/** Body of POST /v1/router/chat/completions, in OpenAI's shape. Unpriced members are refused once the model is known. */
export const RouterChatBody = v.looseObject({
  model: ChatBody.entries.model,
  messages: Messages,
  stream: Flag,
  stream_options: v.nullish(v.strictObject({ include_usage: Flag, include_obfuscation: Flag }, 'must be an object')),
  /** OpenRouter's way to ask for `usage.cost`. */
  usage: v.nullish(v.strictObject({ include: Flag }, 'must be an object')),
});

/** Body of POST /v1/router/completions. */
export const CompletionBody = v.looseObject({
  model: ChatBody.entries.model,
  stream: Flag,
  stream_options: RouterChatBody.entries.stream_options,
  usage: RouterChatBody.entries.usage,
});

/** Body of POST /v1/router/rerank. */
export const RankingBody = v.looseObject({ model: ChatBody.entries.model });

/** The upstream's answers, unchanged. A ranking may be a list. */
export const TextCompletion = v.looseObject({ choices: v.optional(v.array(v.unknown())) });
export const Ranking = v.union([v.looseObject({ results: v.optional(v.array(v.unknown())) }), v.array(v.unknown())]);

/** Body of POST /v1/router/embeddings. */
export const EmbeddingsBody = v.looseObject({ model: ChatBody.entries.model });

/** The upstream's answer, unchanged. */
export const Embeddings = v.looseObject({ data: v.optional(v.array(v.unknown())) });

const Dollars = v.pipe(v.number(), v.description('USD'));
/** The limits of a gateway key, in OpenRouter's shape. */
export const GatewayKey = v.object({
  data: v.object({
    label: v.string(),
    limit: Dollars,
    limit_remaining: Dollars,
    limit_reset: v.nullable(v.picklist(['daily', 'weekly', 'monthly'])),
    usage: Dollars,
    usage_daily: Dollars,
    is_free_tier: v.literal(false),
  }),
});

/** Renders the limits of a gateway key. `daily` is the charge of its wallet since midnight, UTC. */
export function gatewayKey(
  wallet: Wallet,
  { last4 }: Pick<RouterKey, 'last4'>,
  every: Period | undefined,
  daily: Nanos,
): v.InferOutput<typeof GatewayKey> {
  const dollars = (amount: Nanos) => Number(formatUsd(amount)); // For display: OpenRouter's figures are numbers.
  return {
    data: {
      label: `${TOKEN_PREFIX.router}…${last4}`,
      limit: dollars(Nanos(wallet.budget - wallet.periodSpent)), // For the current period, if the wallet is refilled.
      limit_remaining: dollars(shownAvailable(wallet)),
      limit_reset: every ? ({ day: 'daily', week: 'weekly', month: 'monthly' } as const)[every] : null,
      usage: dollars(wallet.spent),
      usage_daily: dollars(daily),
      is_free_tier: false,
    },
  };
}

/** Renders a gateway key for the operator, without its secret. */
export function routerKeyRecord(key: RouterKey) {
  return {
    id: key.id,
    wallet_id: key.walletId,
    prefix: TOKEN_PREFIX.router,
    last4: key.last4,
    options: parseJson(key.options) as unknown,
    created_at: key.createdAt,
    revoked_at: key.revokedAt,
  };
}
