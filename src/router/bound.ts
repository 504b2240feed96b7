import assert from 'node:assert/strict';
import { isWire, type NativeWire } from '../config/router.ts';
import { cachedAs, type Forwards, forwardedBy, withoutCacheControl } from './cache-control.ts';
import { contextOf, fadedAt, type Model, promptBound, type Route } from './catalogue.ts';
import { spliced, writtenAgain } from './forwarded.ts';
import { type ChatBody, type Measured, measureChat, measuredFor, measureEmbeddings } from './measure.ts';
import { measureRanking } from './measure-prompts.ts';
import type { Api } from './native.ts';
import type { MaxUsage } from './price.ts';
import type { UpstreamRequest } from './upstream.ts';

/**
 * Prompt tokens besides the values of a request, which the template writes around them. Per request: a preamble (the date, a short
 * default system prompt) and the opening of the answer. For tools: how to call them (Claude: up to 530). Tokens that a server adds
 * beyond that are `prompt_overhead_tokens`.
 */
const TOKENS_PER_REQUEST = 128;
const TOKENS_PER_MESSAGE = 40;
const TOKENS_FOR_TOOLS = 640;
const TOKENS_PER_TOOL = 64;
const TOKENS_PER_INPUT = 8;
/** A shorter answer is useless to a caller who set no limit. */
const OUTPUT_TOKENS_MIN = 256;
/**
 * Bytes per token in prose. Used where precision is not needed: to estimate how much context a prompt leaves for its
 * answer.
 */
const TYPICAL_BYTES_PER_TOKEN = 4;

/** The bound of the prompt tokens, and its parts. */
type Prompt = {
  tokens: number;
  /** From the text of the request, without the learned additions. */
  computed: number;
  /** From the settings and constants: images, documents, Anthropic's own tools and `prompt_overhead_tokens`. */
  added: number;
  /** The number of prompts, each at most as long as the context. */
  count: number;
  /** True if the context length cut one of them off. */
  isCut: boolean;
};

/** A request with a true upper bound of what it can use, by each of its model's routes (design, section 8). */
export type Bounded = {
  /** The routes that can be asked, in their order. */
  routes: Model['routes'];
  /** The number of answers requested. */
  choices: number;
  images: number;
  /** True if the request sets variables of the model server's template: its count then does not apply to other requests. */
  isTemplated: boolean;
  maxUsage(route: Route): MaxUsage;
  prompt(route: Route): Prompt;
  /** Output tokens of one answer, and the smallest number to which they may be cut; undefined if they may not be cut. */
  reducible: { outputTokens: number; outputTokensMin: number; isNamed: boolean } | undefined;
  /** Lowers the limit of output tokens per answer. */
  reduceTo(outputTokens: number): void;
  /** Returns the limit of output tokens per answer if it was lowered. */
  reducedTo(): number | undefined;
  /** Returns the body to send upstream by this route. */
  bodyFor(route: Route): Buffer;
  /** Returns the API in which the upstream of this route is asked. */
  apiOf(route: Route): Api;
  /** Returns the request in the form that is sent to the upstream of this route. */
  requestFor(route: Route): UpstreamRequest;
  /** An estimate of the longest prompt's tokens, close for prose: unlike the bound it may be too low. 0 if nothing is generated. */
  estimate: number;
  /** Frees the bodies once no other route will be asked. */
  release(): void;
};

/** A request in another API than chat completions, for the routes whose upstream speaks it. */
export type Native = {
  wire: NativeWire;
  /** Bytes of the rendered prompt. */
  bytes: number;
  /** An upper bound of the prompt tokens that neither bytes nor images bound. */
  addedTokens: number;
  /** True if no other route can be asked. */
  isOnly: boolean;
  forwards: Forwards;
  /** Members that are written only for routes whose upstream's settings name them. */
  byRoute: Readonly<Record<string, unknown>>;
  /** Returns the members that are rewritten, of which `outputTokens` is one. */
  written(outputTokens: number): Record<string, unknown>;
  headers: Readonly<Record<string, string>>;
};

/** The member whose values a template may turn into text of any length. */
const TEMPLATE_SWITCHES = 'chat_template_kwargs';

/** Bounds a chat completion given as an object. Throws as `measureChat` does. */
export function boundChat(model: Model, raw: ChatBody, stream = false, cutsNamed = false): Bounded {
  const plain = withoutCacheControl(raw);
  const measured = measureChat(measuredFor(model), plain, stream);
  const { forwarded } = measured;
  const cached = plain === raw ? {} : cachedAs(raw, forwarded);
  return bound(model, measured, { plain: writtenAgain(plain, forwarded), ...cached }, cutsNamed);
}

/** Bounds an embeddings request given as an object. Throws as `measureEmbeddings` does. */
export function boundEmbeddings(model: Model, raw: Readonly<Record<string, unknown>>): Bounded {
  const measured = measureEmbeddings(measuredFor(model), raw);
  return bound(model, measured, { plain: writtenAgain(raw, measured.forwarded) });
}

/** Bounds a ranking given as an object. Throws as `measureRanking` does. */
export function boundRanking(model: Model, raw: Readonly<Record<string, unknown>>): Bounded {
  const measured = measureRanking(measuredFor(model), raw);
  return bound(model, measured, { plain: writtenAgain(raw, measured.forwarded) });
}

/**
 * Bounds a measured request by the settings and the rest of the learned bound at `now`. Writes the reserved output limit into its
 * body. With `cutsNamed`, an output limit that the caller named may be lowered, too.
 */
export function bound(
  model: Model,
  measured: Measured,
  forwards: Forwards,
  cutsNamed = false,
  native?: Native,
  now = 0,
): Bounded {
  return model.kind === 'chat'
    ? boundGenerated(model, measured, forwards, cutsNamed, native, now)
    : boundRead(model, measured, forwards, now);
}

/** Bounds a chat, or a legacy completion of one or more prompts. */
function boundGenerated(
  model: Model,
  measured: Measured,
  forwards: Forwards,
  cutsNamed: boolean,
  native: Native | undefined,
  now: number,
): Bounded {
  const { api, images, choices, messages, tools } = measured;
  const { prompts } = measured; // One of a chat.
  const isNamed = measured.outputTokens !== undefined;
  const outputTokens = isNamed
    ? Math.min(model.maxOutputTokens, measured.outputTokens as number)
    : model.defaultOutputTokens;
  const outputTokensMin = Math.min(OUTPUT_TOKENS_MIN, outputTokens);
  let perChoice = outputTokens;
  const frame =
    TOKENS_PER_REQUEST + TOKENS_PER_MESSAGE * messages + (tools && TOKENS_FOR_TOOLS + TOKENS_PER_TOOL * tools);
  const imageTokens = images * (model.imageTokens ?? 0);
  // Without a limit by the caller: a model server refuses a limit that does not fit its context beside the prompt. Only
  // the server knows the prompt's length; if the estimate is too low, it refuses, which costs nothing.
  const longest = Math.max(...prompts.map(({ bytes, tokens }) => Math.ceil(bytes / TYPICAL_BYTES_PER_TOKEN) + tokens));
  const estimate = longest + imageTokens;
  const outputOf = (route: Route) => {
    if (isNamed) return perChoice;
    const free = route.contextLength - estimate - route.promptOverheadTokens;
    return Math.min(perChoice, Math.max(outputTokensMin, free));
  };
  // Taken out here, so that the data kept for the length of a stream does not hold the body.
  const { wire, bytes: nativeBytes = 0, byRoute: byNativeRoute = {}, written: writtenNatively } = native ?? {};
  const nativeTokens = native?.addedTokens ?? 0;
  const addedOf = (route: Route) => imageTokens + (speaks(route, wire) ? nativeTokens : 0);
  const prompt = promptsOf(model, now, addedOf, (route) =>
    speaks(route, wire)
      ? [nativeBytes * route.tokensPerByte + frame]
      : prompts.map(({ bytes, tokens }) => bytes * route.tokensPerByte + tokens + frame),
  );
  const asksForHour = [forwards, native?.forwards].some((it) => it?.cachedForHour);
  return {
    routes: native?.isOnly ? (model.routes.filter((it) => speaks(it, wire)) as [Route, ...Route[]]) : model.routes,
    estimate,
    choices,
    images,
    isTemplated: measured.forwarded.includes(TEMPLATE_SWITCHES),
    maxUsage: (route) => ({
      promptTokens: prompt(route).tokens,
      completionTokens: choices * outputOf(route),
      images,
      ...(asksForHour && route.cachesForHour ? { isCachedForHour: true } : {}),
    }),
    prompt,
    reducible: isNamed && !cutsNamed ? undefined : { outputTokens, outputTokensMin, isNamed },
    reduceTo(fewer) {
      assert((cutsNamed || !isNamed) && fewer >= outputTokensMin && fewer <= outputTokens);
      perChoice = fewer;
    },
    reducedTo: () => (perChoice < outputTokens ? perChoice : undefined),
    ...bodies(api, forwards, native, (route) => {
      if (speaks(route, wire))
        return { ...namedBy(route, byNativeRoute), ...writtenNatively?.(outputOf(route)), ...route.forced };
      const members = { ...measured.written, ...namedBy(route, measured.byRoute) };
      if (api === 'completions') return { ...members, max_tokens: outputOf(route) }; // The API has no newer members.
      return {
        ...members,
        ...route.forced,
        [route.outputLimit]: outputOf(route),
      };
    }),
  };
}

/** Returns the members that the settings of the route's upstream name. */
function namedBy({ forward }: Route, members: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  const names = Object.keys(members);
  if (names.every((name) => forward.includes(name))) return members;
  return Object.fromEntries(names.filter((name) => forward.includes(name)).map((name) => [name, members[name]]));
}

const speaks = ({ wires }: Route, wire: NativeWire | undefined) => wire !== undefined && wires.includes(wire);

/** Bounds a request that generates nothing: embeddings or a ranking. Each input or document is at most one context. */
function boundRead(model: Model, measured: Measured, forwards: Forwards, now: number): Bounded {
  const { api } = measured;
  // Models that rank are asked by a template with an instruction of their own.
  const frame = api === 'rerank' ? TOKENS_PER_REQUEST : TOKENS_PER_INPUT;
  const prompt = promptsOf(
    model,
    now,
    () => 0,
    (route) => measured.prompts.map(({ bytes, tokens }) => bytes * route.tokensPerByte + tokens + frame),
  );
  return {
    routes: model.routes,
    choices: 1,
    images: 0,
    isTemplated: false,
    estimate: 0,
    ...bodies(api, forwards, undefined, (route) => namedBy(route, measured.byRoute)),
    maxUsage: (route) => ({ promptTokens: prompt(route).tokens, completionTokens: 0, images: 0 }),
    prompt,
    reducible: undefined,
    reduceTo() {},
    reducedTo: () => undefined,
  };
}

/**
 * Returns the prompts of a request by route, `computed` from the text of each and with `addedOf` other tokens. They are
 * computed once: what later requests teach must not change the hold of this one.
 */
function promptsOf(
  model: Model,
  now: number,
  addedOf: (route: Route) => number,
  computed: (route: Route) => number[],
): (route: Route) => Prompt {
  const prompts = new Map(
    model.routes.map((route) => {
      const each = computed(route);
      const faded = fadedAt(route.learned, now);
      const addedTokens = addedOf(route);
      const prompt: Prompt = {
        tokens: 0,
        computed: 0,
        added: each.length * (addedTokens + route.promptOverheadTokens),
        count: each.length,
        isCut: false,
      };
      for (const it of each) {
        const bounded = promptBound(route, it, addedTokens, faded);
        prompt.tokens += bounded;
        prompt.computed += it;
        prompt.isCut ||= bounded >= contextOf(route);
      }
      return [route, prompt];
    }),
  );
  return (route) => prompts.get(route) as Prompt;
}

/** Writes the body for each route and keeps the latest one. The bodies differ in a member or two. */
function bodies(
  api: Measured['api'],
  forwards: Forwards,
  native: Native | undefined,
  written: (route: Route) => Record<string, unknown>,
): Pick<Bounded, 'bodyFor' | 'apiOf' | 'requestFor' | 'release'> {
  let kept: { forwards: Forwards; native: Forwards | undefined } | undefined = { forwards, native: native?.forwards };
  let last: { route: Route; body: Buffer } | undefined;
  const wire = native?.wire;
  const headers = native?.headers;
  const apiOf = (route: Route): Api => (wire && speaks(route, wire) ? wire : api);
  function bodyFor(route: Route): Buffer {
    if (last?.route === route) return last.body;
    assert(kept, 'no upstream is asked after the release');
    const forwarded = forwardedBy(route, (speaks(route, wire) && kept.native) || kept.forwards);
    const body = spliced(forwarded, { model: route.upstreamModel, ...written(route) });
    last = { route, body };
    return body;
  }
  return {
    bodyFor,
    apiOf,
    requestFor(route) {
      const api = apiOf(route);
      return { api, body: bodyFor(route), ...(isWire(api) && headers ? { headers } : {}) };
    },
    release() {
      kept = undefined;
      last = undefined;
    },
  };
}
