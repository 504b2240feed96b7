import { chat } from '../../chat/chat.ts';
import type { ChatRequest } from '../../chat/quote.ts';
import type { Bounded } from '../../router/bound.ts';
import { PAID_REFUSALS } from '../../spend/spend.ts';
import { ChatBody, ChatCompletion } from '../../wire/chat.ts';
import { conversationIn } from '../conversation.ts';
import { endpoint } from '../endpoint.ts';
import { boundRequest } from '../model-request.ts';
import { CHAT_HEADERS, limitHeaders, paidHeaders } from '../paid.ts';
import { tagsOf } from '../tags.ts';

export const CHAT_BYTES_MAX = 8 * 1024 * 1024;

export const createChatCompletion = endpoint({
  summary: 'One metered chat completion, without streaming',
  scope: 'wallet',
  idempotent: true,
  body: ChatBody,
  modelRequest: 'chat',
  bodyBytesMax: CHAT_BYTES_MAX,
  answer: ChatCompletion,
  headers: CHAT_HEADERS,
  refusals: [
    ...PAID_REFUSALS,
    'streaming_not_supported',
    'unsupported_parameter',
    'context_length_exceeded',
    'model_not_found',
    'idempotency_key_expired',
    'answer_lost',
    'gateway_unavailable',
  ],
  example: {
    body: { model: 'qwen3-8b', messages: [{ role: 'user', content: 'Say hello.' }], max_tokens: 100 },
    answer: {
      id: 'chatcmpl-1',
      object: 'chat.completion',
      created: 1795000300,
      model: 'qwen3-8b',
      choices: [{ index: 0, message: { role: 'assistant', content: 'Hello.' }, finish_reason: 'stop' }],
      usage: { prompt_tokens: 12, completion_tokens: 2, total_tokens: 14 },
    },
  },
  async run(app, { principal, request, idempotencyKey, requestId, headers, whenGone }) {
    let bounded: Bounded | undefined;
    const order: ChatRequest = {
      walletId: principal.wallet.id,
      route: 'chat/completions',
      idempotencyKey,
      fingerprint: request.fingerprint,
      requestId,
      onResponseEnd: whenGone,
      tags: tagsOf(headers, request.tags),
      traceparent: headers.traceparent,
      conversation: conversationIn(headers, principal.wallet.id, request.conversation),
      prepare() {
        const model = app.catalogue.find(request.model, 'chat');
        bounded = boundRequest(model, request, false, {}, app.clock.now());
        return { model, bounded };
      },
    };
    const { answer, replayed, paid } = await chat(app, order);
    return {
      body: answer,
      replayed,
      headers: { ...paidHeaders(app, order, paid), ...limitHeaders(app, order, bounded) },
    };
  },
});
