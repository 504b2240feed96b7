import { hash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import * as v from 'valibot';
import { routerCredential, routerToken } from '../../access/keyring.ts';
import { type RouterPrincipal, revokedSince } from '../../access/principal.ts';
import { routerKeyOf } from '../../access/router-keys.ts';
import { openRouterKey } from '../../access/writes.ts';
import { periodAt } from '../../base/calendar.ts';
import { NEW_KEY, RETRY_SAME_KEY, Refusal, type RefusalCode } from '../../base/refusal.ts';
import { chat } from '../../chat/chat.ts';
import type { ChatRequest } from '../../chat/quote.ts';
import { streamChat, transcriptOf } from '../../chat/stream.ts';
import { installationOf } from '../../ledger/installation.ts';
import { chargedSince } from '../../ledger/operation.ts';
import { refillOf } from '../../ledger/refill.ts';
import { findWallet, refuseInactive, type Wallet } from '../../ledger/wallet.ts';
import type { Bounded } from '../../router/bound.ts';
import type { Model } from '../../router/catalogue.ts';
import { DONE_EVENT } from '../../router/sse.ts';
import { readTranscript } from '../../router/transcript.ts';
import { ChatCompletion } from '../../wire/chat.ts';
import {
  AnthropicModel,
  AnthropicModelList,
  anthropicModel,
  anthropicModels,
  ModelList,
  ModelRecord,
  modelRecord,
} from '../../wire/models.ts';
import {
  Embeddings,
  GatewayKey,
  gatewayKey,
  Ranking,
  RouterKeyAnswer,
  RouterKeyRequest,
  TextCompletion,
} from '../../wire/router.ts';
import { conversationIn } from '../conversation.ts';
import { type Call, type Endpoint, endpoint, type HttpApp } from '../endpoint.ts';
import type { EventStream } from '../event-stream.ts';
import type { Allowance } from '../memory-quota.ts';
import { boundRequest, KINDS } from '../model-request.ts';
import { limitHeaders, paidComment, paidHeaders, withComment } from '../paid.ts';
import { type Tag, tagsOf } from '../tags.ts';
import { withCostChunk, withUsageCost } from '../usage-cost.ts';
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
  async run(app, { principal, body }) {
    const wallet = findWallet(app.ledger.read, principal.wallet.id) as Wallet;
    for (const id of body.models ?? []) app.catalogue.find(id);
    const now = app.clock.now();
    refuseInactive(app.ledger.read, wallet, now); // The master key of a closed wallet may be gone.
    const order = { walletId: wallet.id, options: body, fresh: routerCredential(app.keyring, wallet) };
    const { key, isNew } = await app.ledger.write(openRouterKey, { order, now });
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

export function find(app: HttpApp, principal: RouterPrincipal, id: string, kind?: Model['kind']): Model {
  const model = app.catalogue.find(id, kind);
  refuseOthers(principal, id);
  return model;
}

/** Throws `model_not_found` for a model that this key may not use, even for a replay of another key's purchase. */
export function refuseOthers({ limits }: RouterPrincipal, id: string): void {
  if (limits.models?.has(id) ?? true) return;
  throw new Refusal(
    'model_not_found',
    'This gateway key is not for that model. GET /models lists those that it is for.',
    { param: 'model' },
  );
}

export const readGatewayKey = endpoint({
  summary: 'Read what the wallet of this gateway key may spend, in the shape of OpenRouter',
  scope: 'router',
  answer: GatewayKey,
  example: {
    answer: {
      data: {
        label: 'svc_router_…b0d2',
        limit: 5,
        limit_remaining: 4.8777,
        limit_reset: null,
        usage: 0.1203,
        usage_daily: 0.02,
        is_free_tier: false,
      },
    },
  },
  run(app, { principal }) {
    const { read } = app.ledger;
    const wallet = findWallet(read, principal.walletId) as Wallet;
    const midnight = periodAt('day', 'UTC', app.clock.now()).start;
    const key = routerKeyOf(read, principal.routerKeyId);
    return { body: gatewayKey(wallet, key, refillOf(wallet)?.every, chargedSince(read, wallet, midnight)) };
  },
});

/** Returns whether a client of Anthropic asks: the list is at the same path in both APIs. */
const asksAsAnthropic = ({ 'anthropic-version': version }: IncomingHttpHeaders) => version !== undefined;
const createdAt = (app: HttpApp) => installationOf(app.ledger.read).createdAt;

export const listRouterModels = endpoint({
  summary: 'List the models that this gateway key may use',
  scope: 'router',
  answer: v.union([ModelList, AnthropicModelList]),
  example: { answer: { object: 'list', data: [MODEL_EXAMPLE] } },
  run(app, { principal, headers }) {
    const models = offered(app, principal);
    if (asksAsAnthropic(headers)) return { body: anthropicModels(models, createdAt(app)) };
    return { body: { object: 'list', data: models.map((model) => modelRecord(model, createdAt(app))) } };
  },
});

export const readRouterModel = endpoint({
  summary: 'Read one model',
  scope: 'router',
  answer: v.union([ModelRecord, AnthropicModel]),
  refusals: ['model_not_found'],
  example: { answer: MODEL_EXAMPLE },
  run(app, { principal, params, headers }) {
    const recordOf = asksAsAnthropic(headers) ? anthropicModel : modelRecord;
    return { body: recordOf(find(app, principal, params.id as string), createdAt(app)) };
  },
});

type Caller = Pick<
  Call<'router', unknown>,
  'principal' | 'idempotencyKey' | 'isKeyMadeUp' | 'requestId' | 'headers' | 'whenGone'
>;
type RouterCall = Caller & Pick<Call<'router', unknown>, 'request'>;
/** A paid request under the gateway's base URL, and the headers of its answer. */
type RouterRequest = { request: ChatRequest; headers: () => Record<string, string> };

/** Builds the request from a body that was read as a request to a model. */
function requestOf(app: HttpApp, call: RouterCall, route: string, kind: Model['kind']): Promise<RouterRequest> {
  const { request, principal } = call;
  return paidRequest(app, call, request, route, () => {
    const model = find(app, principal, request.model, kind);
    return { model, bounded: boundRequest(model, request, true, {}, app.clock.now()) };
  });
}

/**
 * Builds the part of the request that all paid endpoints under the gateway's base URL share. A request without a key takes
 * over an earlier attempt at the same question under the same gateway key, if there is one.
 */
export async function paidRequest(
  app: HttpApp,
  { principal, idempotencyKey, isKeyMadeUp, requestId, headers: sent, whenGone }: Caller,
  ofBody: { fingerprint: Buffer; tags: Tag[]; conversation?: string | undefined },
  route: string,
  prepare: ChatRequest['prepare'],
): Promise<RouterRequest> {
  const { walletId } = principal;
  const fingerprint = isKeyMadeUp
    ? hash('sha256', Buffer.concat([Buffer.from(`${principal.routerKeyId}\n${route}\n`), ofBody.fingerprint]), 'buffer')
    : ofBody.fingerprint;
  const changes = app.ledger.changeCount(); // The key was read, or read again, in this turn.
  const tags = tagsOf(sent, ofBody.tags); // Checked before an attempt is claimed: a refusal would keep it.
  const claim = isKeyMadeUp
    ? await app.retries.claim({ walletId, route, fingerprint, requestId }, whenGone)
    : undefined;
  let bounded: Bounded | undefined;
  const request: ChatRequest = {
    walletId,
    route,
    // Read again for the headers of the answer: the attempt may have become a request of its own.
    get idempotencyKey() {
      return claim?.idempotencyKey ?? idempotencyKey;
    },
    fingerprint,
    isKeyMadeUp: isKeyMadeUp && !claim?.takesOver,
    takesOver: claim?.takesOver ?? false,
    waitsForFunds: app.fundsQueue.isOn(),
    requestId,
    onResponseEnd: whenGone,
    claim,
    tags,
    traceparent: sent.traceparent,
    conversation: conversationIn(sent, walletId, ofBody.conversation),
    prepare() {
      const prepared = prepare();
      ({ bounded } = prepared);
      return prepared;
    },
    maxPrice: principal.limits.maxPrice,
    forbidden: () => (app.ledger.changeCount() === changes ? undefined : revokedSince(app.ledger.read, principal)),
  };
  return { request, headers: () => limitHeaders(app, request, bounded) };
}

/** The codes whose messages give advice about keys. */
const ADVISED = new Set<RefusalCode>(['operation_uncertain', 'answer_lost', 'context_length_exceeded']);

/**
 * Rewrites advice about keys for a caller without an Idempotency-Key, who cannot name the attempt in a retry. A stream that
 * has begun is charged for what came of it (decision 0075): its retry takes over nothing.
 */
export function adviseCaller<T>(isKeyMadeUp: boolean, answer: Promise<T>, hasBegun = () => false): Promise<T> {
  if (!isKeyMadeUp) return answer;
  return answer.catch((error) => {
    if (!(error instanceof Refusal) || !ADVISED.has(error.code)) throw error;
    const again = hasBegun()
      ? 'What came of it is charged; asked again, it is a new request.'
      : 'Asked again with the same body, it takes the place of this one: nothing is held or charged twice.';
    throw new Refusal(
      error.code,
      error.message.replace(RETRY_SAME_KEY, again).replace(NEW_KEY, 'asked again, it is a new request.'),
      {
        ...(error.retryAfterSeconds === undefined ? {} : { retryAfterSeconds: error.retryAfterSeconds }),
        cause: error,
      },
    );
  });
}

/** Builds an endpoint that generates text by a model for chats, streamed if asked for. */
function generating(
  summary: string,
  kind: 'routerChat' | 'completions',
  route: string,
  answer: v.GenericSchema,
): Endpoint {
  return endpoint({
    summary,
    scope: 'router',
    idempotent: 'optional',
    body: KINDS[kind].schema,
    modelRequest: kind,
    bodyBytesMax: CHAT_BYTES_MAX,
    answer,
    example: { answer: {} },
    async run(app, call) {
      const { request: modelRequest, isKeyMadeUp } = call;
      refuseOthers(call.principal, modelRequest.model);
      const { request, headers } = await requestOf(app, call, route, 'chat');
      if (!modelRequest.stream) {
        const { answer, replayed, paid } = await adviseCaller(isKeyMadeUp, chat(app, request));
        const body = modelRequest.includeCost ? await withUsageCost(app, request, answer) : answer;
        return { body, replayed, headers: { ...paidHeaders(app, request, paid), ...headers() } };
      }
      return {
        async stream(client: EventStream, share: Allowance) {
          const { includeCost } = modelRequest;
          const plain = withComment(client, () => paidComment(app, request));
          const commented = includeCost ? withCostChunk(app, request, plain) : plain;
          const begin = (more?: Record<string, string>) => commented.begin({ ...headers(), ...more });
          const events = { ...commented, begin };
          const includeUsage = modelRequest.includeUsage && !includeCost; // The chunk with the cost has the usage, too.
          const streamed = adviseCaller(
            isKeyMadeUp,
            streamChat(app, { ...request, includeUsage }, events),
            client.hasBegun,
          );
          const { answer, replayed } = await streamed;
          if (!replayed) return;
          modelRequest.measured = undefined; // A replay never prepares, so the body is still referenced.
          await replayTranscript(transcriptOf(answer), events, share);
        },
      };
    },
  });
}

export const createRouterChatCompletion = generating(
  'One metered chat completion, streamed if asked for',
  'routerChat',
  'router/chat/completions',
  ChatCompletion,
);
export const createTextCompletion = generating(
  'One metered legacy completion, streamed if asked for',
  'completions',
  'router/completions',
  TextCompletion,
);

/** Streams a stored transcript. Its end marker is written in one piece, as `withComment` expects it. */
export async function replayTranscript(transcript: Buffer, events: EventStream, share: Allowance): Promise<void> {
  events.begin({ 'idempotent-replayed': 'true' });
  share.add(transcript.length);
  let tail: Buffer = Buffer.alloc(0);
  for await (const piece of readTranscript(transcript)) {
    const bytes = Buffer.concat([tail, piece]);
    tail = bytes.subarray(-DONE_EVENT.length);
    await events.write(bytes.subarray(0, -DONE_EVENT.length));
  }
  await events.write(tail);
}

/** Builds an endpoint whose answer comes in one piece from a model of its own kind. */
function whole(summary: string, kind: 'embeddings' | 'rerank', answer: v.GenericSchema): Endpoint {
  return endpoint({
    summary,
    scope: 'router',
    idempotent: 'optional',
    body: KINDS[kind].schema,
    modelRequest: kind,
    bodyBytesMax: CHAT_BYTES_MAX,
    answer,
    example: { answer: {} },
    async run(app, call) {
      refuseOthers(call.principal, call.request.model);
      const { request } = await requestOf(app, call, `router/${kind}`, kind);
      const { answer, replayed, paid } = await adviseCaller(call.isKeyMadeUp, chat(app, request));
      return { body: answer, replayed, headers: paidHeaders(app, request, paid) };
    },
  });
}

export const createEmbeddings = whole('Metered embeddings', 'embeddings', Embeddings);
export const createRanking = whole('Metered ranking of documents by a query', 'rerank', Ranking);
