import { hash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import * as v from 'valibot';
import { chat } from '../../chat/chat.ts';
import { streamChat, transcriptOf } from '../../chat/stream.ts';
import { fingerprint } from '../../fingerprint.ts';
import { findWallet, type Wallet } from '../../ledger/wallet.ts';
import { type Bounded, boundChat } from '../../router/bound.ts';
import { withoutCacheControl } from '../../router/cache-control.ts';
import type { Model } from '../../router/catalogue.ts';
import { isAnswerOf, isLastEvent, isNativeEvent } from '../../router/native.ts';
import { createEventSplitter, DONE } from '../../router/sse.ts';
import { RouterChatBody } from '../../wire/router.ts';
import { type Endpoint, endpoint, type HttpApp, type Sent } from '../endpoint.ts';
import type { EventStream } from '../event-stream.ts';
import type { Allowance } from '../memory-quota.ts';
import { paidComment, paidHeaders, planHeaders } from '../paid.ts';
import { tagsOfBody } from '../tags.ts';
import { messagesWire } from '../wires/messages.ts';
import { chatOfMessages } from '../wires/messages-request.ts';
import { nativeOf } from '../wires/native.ts';
import { responsesWire } from '../wires/responses.ts';
import type { StreamTranslator, Translated, Wire } from '../wires/wire.ts';
import { CHAT_BYTES_MAX } from './chat.ts';
import { adviseCaller, find, paidRequest, refuseOthers, replayTranscript } from './router.ts';

/** Every other member is checked by the translation. */
const WireBody = v.looseObject({ model: RouterChatBody.entries.model, stream: RouterChatBody.entries.stream });

type Json = Record<string, unknown>;
const planOf = (app: HttpApp, walletId: string) => planHeaders(findWallet(app.ledger.read, walletId) as Wallet);

export const createMessage = translated('One answer in the shape of Anthropic’s Messages', messagesWire, planOf);
export const createResponse = translated('One answer in the shape of OpenAI’s Responses', responsesWire);

/** An endpoint that speaks another API: it translates to one chat completion, which takes the road of all others. */
function translated(
  summary: string,
  wire: Wire,
  extraHeaders: (app: HttpApp, walletId: string) => Record<string, string> = () => ({}),
): Endpoint {
  return endpoint({
    summary,
    scope: 'router',
    idempotent: 'optional',
    body: WireBody,
    bodyBytesMax: CHAT_BYTES_MAX,
    answer: v.looseObject({}),
    example: { answer: {} },
    keepsBytes: true,
    async run(app, { principal, body: { model: id }, raw, sent, isKeyMadeUp, ...call }) {
      refuseOthers(principal, id);
      const plain = withoutCacheControl(raw as Json);
      const { isStream, answers, ...translated } = wire.translate(plain, call.idempotencyKey);
      // Released as soon as its price is bounded, as boundRequest (http/model-request.ts) does.
      let asked: Asked | undefined = { ...translated, raw: raw as Json, sent };
      const caller = { principal, isKeyMadeUp, ...call };
      // As that of a chat (http/model-request.ts): without a key it is that of the bytes.
      const asSent = isKeyMadeUp ? hash('sha256', (sent as Sent).bytes, 'buffer') : fingerprint(raw);
      const ofBody = { fingerprint: asSent, tags: tagsOfBody(raw as Json) };
      const { request, headers } = await paidRequest(app, caller, ofBody, wire.route, () => {
        const model = find(app, principal, id, 'chat');
        const bounded = boundAsked(wire, model, asked as Asked, isStream, call.headers);
        asked = undefined;
        return { model, bounded };
      });
      const { walletId } = principal;
      if (!isStream) {
        const { answer, replayed, paid } = await adviseCaller(isKeyMadeUp, chat(app, request));
        const json: unknown = JSON.parse(answer.toString('utf8'));
        const all = { ...paidHeaders(app, request, paid), ...headers(), ...extraHeaders(app, walletId) };
        return { body: isAnswerOf(wire.name, json) ? answer : answers.whole(json), replayed, headers: all };
      }
      const translator = answers.stream();
      return {
        async stream(client: EventStream, share: Allowance) {
          const translating = translateStream(client, translator, () => paidComment(app, request));
          const events = {
            ...translating,
            begin: (more?: Record<string, string>) =>
              client.begin({ ...headers(), ...extraHeaders(app, walletId), ...more }),
          };
          const streamed = adviseCaller(
            isKeyMadeUp,
            streamChat(app, { ...request, includeUsage: true }, events),
            client.hasBegun,
          );
          const { answer, replayed } = await streamed;
          if (!replayed) return;
          asked = undefined;
          await replayTranscript(transcriptOf(answer), events, share);
        },
        errorEvent: translator.fail,
      };
    },
  });
}

/** A request until it is bounded: translated, and as it came. */
type Asked = Translated & { raw: Json; sent: Sent | undefined };

/** Bounds a request in both forms, where one of the model's upstreams speaks its API itself. */
function boundAsked(
  wire: Wire,
  model: Model,
  { chat, others, raw, sent }: Asked,
  isStream: boolean,
  headers: IncomingHttpHeaders,
): Bounded {
  const isSpoken = model.routes.some(({ wires }) => wires.includes(wire.name));
  const isMarked = model.routes.some(({ cachesPrompts }) => cachesPrompts) && withoutCacheControl(raw) !== raw;
  return boundChat(model, chat, isStream, true, {
    others,
    native: isSpoken ? (byRoute) => nativeOf(wire, model, raw, sent, byRoute, wire.native(raw, headers)) : undefined,
    marked: isMarked ? () => wire.translate(raw, '').chat : undefined,
  });
}

/**
 * Returns a stream that takes chat completion chunks and writes the events of another API. Events that are of that API
 * already go on as they came, with `comment` before the last.
 */
function translateStream(client: EventStream, translator: StreamTranslator, comment: () => Buffer): EventStream {
  const splitter = createEventSplitter();
  let isNative: boolean | undefined;

  function passed(raw: Buffer, json: unknown): Buffer[] {
    translator.passed?.(json);
    return isLastEvent(json) ? [comment(), raw] : [raw];
  }

  return {
    ...client,
    write(bytes) {
      const pieces: Buffer[] = [];
      for (const { raw, data } of splitter.push(bytes)) {
        if (data === undefined)
          pieces.push(raw); // A comment, which keeps the connection alive.
        else {
          const json = parse(data);
          isNative ??= isNativeEvent(json);
          if (isNative) pieces.push(...passed(raw, json));
          else if (data === DONE) pieces.push(comment(), Buffer.from(translator.end()));
          else pieces.push(Buffer.from(translator.chunk(json)));
        }
      }
      const all = Buffer.concat(pieces);
      return all.length ? client.write(all) : undefined;
    },
  };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export const countTokens = endpoint({
  summary: 'Estimate the tokens of a message, free of charge',
  scope: 'router',
  body: WireBody,
  bodyBytesMax: CHAT_BYTES_MAX,
  answer: v.object({ input_tokens: v.number() }),
  example: { answer: { input_tokens: 12 } },
  run(app, { principal, body, raw }) {
    const model = find(app, principal, body.model, 'chat');
    const { chat, others } = chatOfMessages(withoutCacheControl(raw as Json));
    return { body: { input_tokens: boundChat(model, chat, false, false, { others }).estimate } };
  },
});
