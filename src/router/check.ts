import { newId } from '../base/id.ts';
import { formatUsd, Nanos, parseDecimal } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import type { NativeWire, UpstreamConfig } from '../config/router.ts';
import { inTime } from '../net/deadline.ts';
import { request } from '../net/request.ts';
import { boundChat, boundEmbeddings, boundRanking } from './bound.ts';
import { type Catalogue, fadedAt, type Model, type Route } from './catalogue.ts';
import { costOf, type Price } from './price.ts';
import { createStreamReader } from './stream-reader.ts';
import type { Asked, Upstream } from './upstream.ts';
import { readUsage } from './usage.ts';

/** The result of a one-token request to a model. `detail` describes the findings, or the fault and its remedy. */
type ModelCheck = { name: string; ok: boolean; detail: string };

const LIST_MILLISECONDS = 10_000;
/** Time limit per route. A model may have to be loaded before its first token. */
const ROUTE_SECONDS = 60;
const NANOS_PER_MILLION_FROM_TOKEN = 15;
const PROBE = { role: 'user', content: 'Say ok.' };

/**
 * Sends a one-token request to every route of every model, charged to no wallet; chats are sent once more as a stream.
 * Compares the token counts with the bound, and the price and context length with those that the upstream states, if any.
 * Costs as much as these requests cost. A route that does not answer within `routeSeconds` is reported as a fault.
 */
export async function checkModels(
  catalogue: Catalogue,
  upstreams: ReadonlyMap<string, Upstream>,
  statedBy: (upstream: string) => Promise<ReadonlyMap<string, StatedModel>>,
  routeSeconds = ROUTE_SECONDS,
  now = 0,
): Promise<ModelCheck[]> {
  const checks: ModelCheck[] = [];
  const stated = new Map<string, ReadonlyMap<string, StatedModel>>();
  for (const model of catalogue.list)
    for (const route of model.routes) {
      const models = stated.get(route.upstream) ?? (await statedBy(route.upstream));
      stated.set(route.upstream, models);
      const tried = tryRoute(model, route, upstreams.get(route.upstream) as Upstream);
      const late = (error: Error): Tried => ({ said: '', faults: [`${error.message}.`] });
      const { said, faults } = await inTime(tried, routeSeconds * 1000, 'Its answer').catch(late);
      const theirs = models.get(route.upstreamModel);
      comparePrice(route.price, theirs?.pricing, faults);
      const context = contextFault(route.contextLength, theirs);
      if (context) faults.push(context);
      const learned = describeLearned(route, now);
      if (learned) faults.push(learned);
      checks.push({
        name: `${model.id} on ${route.upstream}`,
        ok: faults.length === 0,
        detail: faults.length ? faults.join(' ') : said,
      });
    }
  return checks;
}

type Tried = { said: string; faults: string[] };

async function tryRoute(model: Model, route: Route, upstream: Upstream): Promise<Tried> {
  const faults: string[] = [];
  const ask = { model: model.id, messages: [PROBE], max_tokens: 1 };
  const { id, kind } = model;
  const bounded =
    kind === 'chat'
      ? boundChat(model, ask)
      : kind === 'embeddings'
        ? boundEmbeddings(model, { model: id, input: PROBE.content })
        : boundRanking(model, { model: id, query: PROBE.content, documents: [PROBE.content] });
  const reply = await upstream.ask(bounded.askedOf(route), newId('op'));
  if (reply.kind !== 'answered') {
    const fault = reply.kind === 'streaming' ? 'It streams although no stream was requested.' : reply.reason;
    return { said: '', faults: [(reply.kind === 'refused' && reply.fault) || fault] };
  }
  if (model.kind === 'chat') {
    for (const wire of route.wires) await tryWire(upstream, wire, route, faults);
    await tryStream(upstream, boundChat(model, ask, true).askedOf(route), faults);
  }
  const usage = readUsage(reply.told, model.kind);
  if (!usage) return { said: '', faults: [`It reports no readable usage: ${ESTIMATED}`, ...faults] };
  const most = bounded.maxUsage(route);
  if (usage.promptTokens > most.promptTokens)
    faults.push(
      `It counted ${usage.promptTokens} prompt tokens where the bound is ${most.promptTokens}: it adds a prompt of its own. Set prompt_overhead_tokens to ${usage.promptTokens} or more.`,
    );
  if (usage.completionTokens > most.completionTokens)
    faults.push(
      `It counted ${usage.completionTokens} completion tokens though ${route.outputLimit} was ${most.completionTokens}: set output_limit to the name that it obeys.`,
    );
  const cost = Nanos(costOf(route.price, usage, 0));
  const statedCost = reply.told.usage?.cost;
  if (typeof statedCost === 'number' && statedCost > Number(cost) / 1e9)
    faults.push(`It says that this cost ${statedCost} USD; by our price it is ${formatUsd(cost)} USD.`);
  const said = `${usage.promptTokens} prompt and ${usage.completionTokens} completion tokens, ${formatUsd(cost)} USD by our price`;
  return { said, faults };
}

const ESTIMATED = 'what is not told is charged at the bound of the prompt and the bytes of the text.';

/** The smallest limit that OpenAI accepts for a response. */
const RESPONSE_TOKENS_MIN = 16;

/** Sends the request in another API that the settings name for the upstream. */
async function tryWire(upstream: Upstream, wire: NativeWire, { upstreamModel: model }: Route, faults: string[]) {
  const body =
    wire === 'messages'
      ? { model, max_tokens: 1, messages: [PROBE] }
      : { model, max_output_tokens: RESPONSE_TOKENS_MIN, input: PROBE.content, store: false };
  const reply = await upstream.ask({ api: wire, body: Buffer.from(JSON.stringify(body)) }, newId('op'));
  if (reply.kind !== 'answered')
    faults.push(
      `It is said to speak ${wire}: ${reply.kind === 'streaming' ? 'it streams unasked.' : reply.reason} Take it out of wires if it does not.`,
    );
  else if (!readUsage(reply.told, wire)) faults.push(`In ${wire} it reports no readable usage: ${ESTIMATED}`);
}

/** Sends the request as a stream and checks that it has an end and a usage. */
async function tryStream(upstream: Upstream, asked: Asked, faults: string[]): Promise<void> {
  const reply = await upstream.ask(asked, newId('op'), true);
  if (reply.kind === 'answered') {
    if (!readUsage(reply.told, 'chat')) faults.push(`Asked for a stream, it reports no readable usage: ${ESTIMATED}`);
    return;
  }
  if (reply.kind !== 'streaming') {
    faults.push(`Asked for a stream: ${reply.reason}`);
    return;
  }
  const reader = createStreamReader(1);
  try {
    for await (const events of reply.events) {
      const readings = events.map(reader.read);
      if (readings.includes('end')) break;
      if (readings.includes('error')) reply.endSoon();
    }
  } catch (error) {
    faults.push(`Its stream broke off: ${(error as Error).message}.`);
  }
  const { isWhole, isCounted, counts } = reader.heard();
  if (!isWhole) faults.push('Its stream has no end: no [DONE], no finish_reason.');
  if (!isCounted || !readUsage({ usage: counts }, 'chat'))
    faults.push(`Its stream reports no readable usage (stream_options.include_usage): ${ESTIMATED}`);
}

/** Reports a price below the upstream's stated price: it would sell at a loss. */
function comparePrice({ tiers }: Price, stated: unknown, faults: string[]): void {
  const { rates } = tiers[0] as Price['tiers'][number];
  for (const name of ['prompt', 'completion'] as const) {
    const text = (stated as Record<string, unknown> | undefined)?.[name];
    let theirs: bigint;
    try {
      theirs = parseDecimal(String(text), NANOS_PER_MILLION_FROM_TOKEN);
    } catch {
      continue; // It states no price, or one that is not exact.
    }
    if (theirs > rates[name])
      faults.push(
        `It states ${text} USD for a ${name} token, and the price here is lower: it would be sold at a loss.`,
      );
  }
}

/** An entry of an upstream's model list. */
type StatedModel = { pricing: unknown; contextLength: number | undefined };

/** Describes a context length that differs from the one the upstream states; undefined if they agree. */
export function contextFault(contextLength: number, stated: StatedModel | undefined): string | undefined {
  const theirs = stated?.contextLength;
  if (theirs === undefined || theirs === contextLength) return undefined;
  if (contextLength < theirs)
    return `context_length is ${contextLength}, and it takes ${theirs} tokens: prompt tokens above ${contextLength} are given away. To limit prompts, limit them there.`;
  return `context_length is ${contextLength}, and it takes ${theirs} tokens: longer prompts are held for, and then refused there.`;
}

/**
 * Describes the bound learned for a route from counts above its bound, and the settings to use instead; undefined if
 * nothing was learned, or nothing of it is left at `now`.
 */
export function describeLearned({ learned, contextLength }: Route, now = 0): string | undefined {
  const { contextTokens } = learned;
  const { overheadTokens, permille } = fadedAt(learned, now);
  const said = [
    ...(overheadTokens > 0
      ? [`It counted more than the bound of short prompts, so ${overheadTokens} tokens are added to each bound`]
      : []),
    ...(permille > 1000
      ? [`It counted more than the bound of long prompts, so the bound is raised by the factor ${permille / 1000}`]
      : []),
    ...(contextTokens ? [`It counted a prompt of ${contextTokens} tokens, above context_length ${contextLength}`] : []),
  ];
  if (said.length === 0) return undefined;
  return `${said.join('. ')}. Set prompt_overhead_tokens, tokens_per_byte or context_length: a change starts over. \`purser models forget ID\` forgets it.`;
}

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
    return readStatedModels(parseJson(await response.body.text()));
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
