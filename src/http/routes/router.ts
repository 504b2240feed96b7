import { routerToken } from '../../access/keyring.ts';
import type { RouterPrincipal } from '../../access/principal.ts';
import { openRouterKey } from '../../access/router-keys.ts';
import { chat } from '../../chat/chat.ts';
import type { ChatRequest } from '../../chat/quote.ts';
import { streamChat, transcriptOf } from '../../chat/stream.ts';
import { fingerprint } from '../../fingerprint.ts';
import { installationOf } from '../../ledger/installation.ts';
import { RETRY_SAME_KEY, Refusal } from '../../refusal.ts';
import { boundChat, boundEmbeddings, type ChatBody } from '../../router/bound.ts';
import type { Model } from '../../router/catalogue.ts';
import { readTranscript } from '../../router/transcript.ts';
import { ChatCompletion } from '../../wire/chat.ts';
import { ModelList, ModelRecord, modelRecord } from '../../wire/models.ts';
import { Embeddings, EmbeddingsBody, RouterChatBody, RouterKeyAnswer, RouterKeyRequest } from '../../wire/router.ts';
import { type Call, endpoint, type HttpApp } from '../endpoint.ts';
import type { EventStream } from '../event-stream.ts';
import type { Allowance } from '../memory-quota.ts';
import { CHAT_BYTES_MAX } from './chat.ts';
import { MODEL_EXAMPLE } from './models.ts';

export const createRouterKey = endpoint({
  summary: 'Get a wallet-scoped gateway key and its chat-completion-compatible base URL',
  scope: 'wallet',
  body: RouterKeyRequest,
  isBodyOptional: true,
  answer: RouterKeyAnswer,
  refusals: ['model_not_found', 'wallet_closed', 'wallet_expired', 'account_suspended'],
  example: {
    body: { models: ['qwen3-8b'], max_price_usd: '0.10' },
    answer: { api_key: 'svc_router_…', base_url: 'http://127.0.0.1:7420/v1/router', expires_at: 1795086400 },
  },
  async run(app, { principal: { wallet }, body }) {
    for (const id of body.models ?? []) app.catalogue.find(id);
    const now = app.clock.now();
    const { key, isNew } = await app.ledger.write((tx) => openRouterKey(tx, app.keyring, wallet.id, body, now));
    if (isNew) app.events.routerKeyOpened(key);
    return {
      body: {
        api_key: routerToken(app.keyring, key),
        base_url: `${app.state.baseUrl}/v1/router`,
        expires_at: wallet.expiresAt,
      },
    };
  },
});

/** Returns the models that the key may use; others do not exist for it. */
const offered = (app: HttpApp, { limits }: RouterPrincipal): readonly Model[] =>
  app.catalogue.list.filter(({ id }) => limits.models?.has(id) ?? true);

function find(app: HttpApp, principal: RouterPrincipal, id: string, kind?: Model['kind']): Model {
  const model = app.catalogue.find(id, kind);
  refuseOthers(principal, id);
  return model;
}

/** Throws `model_not_found` for a model that this key may not use, even for a replay of another key's purchase. */
function refuseOthers({ limits }: RouterPrincipal, id: string): void {
  if (limits.models?.has(id) ?? true) return;
  throw new Refusal(
    'model_not_found',
    'This gateway key is not for that model. GET /models lists those that it is for.',
    { param: 'model' },
  );
}

const createdAt = (app: HttpApp) => installationOf(app.ledger.read).createdAt;

export const listRouterModels = endpoint({
  summary: 'List the models that this gateway key may use',
  scope: 'router',
  answer: ModelList,
  example: { answer: { object: 'list', data: [MODEL_EXAMPLE] } },
  run: (app, { principal }) => ({
    body: { object: 'list', data: offered(app, principal).map((model) => modelRecord(model, createdAt(app))) },
  }),
});

export const readRouterModel = endpoint({
  summary: 'Read one model',
  scope: 'router',
  answer: ModelRecord,
  refusals: ['model_not_found'],
  example: { answer: MODEL_EXAMPLE },
  run: (app, { principal, params }) => ({
    body: modelRecord(find(app, principal, params.id as string), createdAt(app)),
  }),
});

/** OpenAI's own limits: 2048 inputs of 8192 tokens each. The limit on body bytes is reached first. */
const EMBEDDED_TOKENS_MAX = 2048 * 8192;

type RouterCall = Pick<Call<'router', unknown>, 'principal' | 'raw' | 'idempotencyKey' | 'isKeyMadeUp' | 'requestId'>;

/** Builds the request that chat completions and embeddings have in common. */
function requestOf(
  { principal, raw, idempotencyKey, isKeyMadeUp, requestId }: RouterCall,
  route: string,
  prepare: ChatRequest['prepare'],
): ChatRequest {
  return {
    walletId: principal.wallet.id,
    route,
    idempotencyKey,
    fingerprint: fingerprint(raw),
    requestId,
    prepare,
    maxPrice: principal.limits.maxPrice,
    keep: !isKeyMadeUp,
  };
}

/** Rewrites the advice of `operation_uncertain` for a caller without an Idempotency-Key, who cannot retry the same attempt. */
function adviseCaller<T>(isKeyMadeUp: boolean, answer: Promise<T>): Promise<T> {
  if (!isKeyMadeUp) return answer;
  return answer.catch((error) => {
    if (!(error instanceof Refusal) || error.code !== 'operation_uncertain') throw error;
    throw new Refusal(
      'operation_uncertain',
      error.message.replace(
        RETRY_SAME_KEY,
        'No Idempotency-Key was sent: asked again, it is a new request with a price of its own.',
      ),
      {
        ...(error.retryAfterSeconds === undefined ? {} : { retryAfterSeconds: error.retryAfterSeconds }),
        cause: error,
      },
    );
  });
}

export const createRouterChatCompletion = endpoint({
  summary: 'One metered chat completion, streamed if asked for',
  scope: 'router',
  idempotent: 'optional',
  body: RouterChatBody,
  bodyBytesMax: CHAT_BYTES_MAX,
  answer: ChatCompletion,
  example: { answer: {} },
  async run(app, { principal, body, raw, isKeyMadeUp, ...call }) {
    refuseOthers(principal, body.model);
    const isStream = body.stream === true;
    const includeUsage = body.stream_options?.include_usage === true;
    const { model: id } = body;
    // The raw body, as in routes/chat.ts. It is released as soon as its price is bounded: a stream may last for an hour,
    // and a thousand streams must not keep a thousand prompts in memory.
    let asked: ChatBody | undefined = raw as ChatBody;
    const request = requestOf({ principal, raw, isKeyMadeUp, ...call }, 'router/chat/completions', () => {
      const model = find(app, principal, id, 'chat');
      const bounded = boundChat(model, asked as ChatBody, isStream);
      asked = undefined;
      return { model, bounded };
    });
    if (!isStream) {
      const { answer, replayed } = await adviseCaller(isKeyMadeUp, chat(app, request));
      return { body: answer, replayed };
    }
    return {
      async stream(events: EventStream, share: Allowance) {
        const { answer, replayed } = await adviseCaller(
          isKeyMadeUp,
          streamChat(app, { ...request, includeUsage }, events),
        );
        if (!replayed) return;
        asked = undefined; // A replay never prepares, so the body is still referenced.
        const transcript = transcriptOf(answer);
        events.begin({ 'idempotent-replayed': 'true' });
        share.add(transcript.length);
        for await (const piece of readTranscript(transcript)) await events.write(piece);
      },
    };
  },
});

export const createEmbeddings = endpoint({
  summary: 'Metered embeddings',
  scope: 'router',
  idempotent: 'optional',
  body: EmbeddingsBody,
  bodyBytesMax: CHAT_BYTES_MAX,
  bodyNumbersMax: EMBEDDED_TOKENS_MAX,
  answer: Embeddings,
  example: { answer: {} },
  async run(app, call) {
    refuseOthers(call.principal, call.body.model);
    const request = requestOf(call, 'router/embeddings', () => {
      const model = find(app, call.principal, call.body.model, 'embeddings');
      return { model, bounded: boundEmbeddings(model, call.raw as Record<string, unknown>) };
    });
    const { answer, replayed } = await adviseCaller(call.isKeyMadeUp, chat(app, request));
    return { body: answer, replayed };
  },
});
