import { existsSync } from 'node:fs';
import { newId } from '../base/id.ts';
import { formatUsd, Nanos, parseDecimal } from '../base/money.ts';
import { openBooks } from '../books/open.ts';
import { recallBounds } from '../chat/learn.ts';
import type { CheckFinding } from '../compute/backend.ts';
import type { Config } from '../config/config.ts';
import type { NativeWire, UpstreamConfig } from '../config/router.ts';
import { files, refuseOtherOwner } from '../files/data-directory.ts';
import { inTime } from '../net/deadline.ts';
import { boundChat, boundEmbeddings, boundRanking } from '../router/bound.ts';
import { type Catalogue, createCatalogue, fadedAt, type Model, priceOf, type Route } from '../router/catalogue.ts';
import { costOf, type Price } from '../router/price.ts';
import { type StatedModel, statedModels } from '../router/stated-models.ts';
import { createStreamReader } from '../router/stream-reader.ts';
import { openUpstream, type Upstream, type UpstreamRequest } from '../router/upstream.ts';
import { readUsage } from '../router/usage.ts';

/** Time limit per route. A model may have to be loaded before its first token. */
const ROUTE_SECONDS = 60;
const NANOS_PER_MILLION_FROM_TOKEN = 15;
const PROBE = { role: 'user', content: 'Say ok.' };

/**
 * Checks every configured model at its model servers, with the bounds learned up to `now` in Unix seconds; a server may be
 * running. A model without a price is a fault.
 */
export async function examineModels(config: Config, now: number): Promise<CheckFinding[]> {
  const catalogue = createCatalogue(config);
  readLearned(config.dataDirectory, catalogue, now);
  const { upstreams: configs, models } = config.router;
  const upstreams = new Map(configs.map((it) => [it.name, openUpstream(it)]));
  const statedBy = async (name: string) => statedModels(configs.find((it) => it.name === name) as UpstreamConfig);
  try {
    const findings = await checkModels(catalogue, upstreams, statedBy, ROUTE_SECONDS, now);
    const unpriced = models.filter((it) => !priceOf(it));
    const detail = 'It has no price, so it is not offered. Give it pricing.';
    return [...findings, ...unpriced.map(({ id }) => ({ name: id, ok: false, detail }))];
  } finally {
    await Promise.all([...upstreams.values()].map((it) => it.close()));
  }
}

/**
 * Loads the learned bounds of every route from a data directory's database, if there is one. A server may be running. Throws
 * OtherOwnerError if the directory belongs to another user.
 */
export function readLearned(dataDirectory: string, catalogue: Catalogue, now = 0): void {
  const { database } = files(dataDirectory);
  // Checked first: to another user the directory would look empty.
  if (existsSync(dataDirectory)) refuseOtherOwner(dataDirectory);
  if (!existsSync(database)) return;
  using books = openBooks(database, { access: 'read' });
  recallBounds(books.read, catalogue, now);
}

/**
 * Sends a one-token request to every route of every model, charged to no wallet; chats are sent once more as a stream. Compares the
 * token counts with the bound, and the price and context length with those that the upstream states, if any. Costs as much as these
 * requests cost. A route that does not answer within `routeSeconds` is reported as a fault.
 */
export async function checkModels(
  catalogue: Catalogue,
  upstreams: ReadonlyMap<string, Upstream>,
  statedBy: (upstream: string) => Promise<ReadonlyMap<string, StatedModel>>,
  routeSeconds = ROUTE_SECONDS,
  now = 0,
): Promise<CheckFinding[]> {
  const findings: CheckFinding[] = [];
  const stated = new Map<string, ReadonlyMap<string, StatedModel>>();
  for (const model of catalogue.list)
    for (const route of model.routes) {
      const models = stated.get(route.upstream) ?? (await statedBy(route.upstream));
      stated.set(route.upstream, models);
      const tried = tryRoute(model, route, upstreams.get(route.upstream) as Upstream);
      const late = (error: Error): ModelTrial => ({ detail: '', faults: [`${error.message}.`] });
      const { detail, faults } = await inTime(tried, routeSeconds * 1000, 'Its answer').catch(late);
      const theirs = models.get(route.upstreamModel);
      comparePrice(route.price, theirs?.pricing, faults);
      const context = contextFault(route.contextLength, theirs);
      if (context) faults.push(context);
      const learned = describeLearned(route, now);
      if (learned) faults.push(learned);
      findings.push({
        name: `${model.id} on ${route.upstream}`,
        ok: faults.length === 0,
        detail: faults.length ? faults.join(' ') : detail,
      });
    }
  return findings;
}

/** The result of asking a route: a description of its answer, and the faults. */
type ModelTrial = { detail: string; faults: string[] };

async function tryRoute(model: Model, route: Route, upstream: Upstream): Promise<ModelTrial> {
  const faults: string[] = [];
  const ask = { model: model.id, messages: [PROBE], max_tokens: 1 };
  const { id, kind } = model;
  const bounded =
    kind === 'chat'
      ? boundChat(model, ask)
      : kind === 'embeddings'
        ? boundEmbeddings(model, { model: id, input: PROBE.content })
        : boundRanking(model, { model: id, query: PROBE.content, documents: [PROBE.content] });
  const reply = await upstream.ask(bounded.requestFor(route), newId('op'));
  if (reply.kind !== 'answered') {
    const fault = reply.kind === 'streaming' ? 'It streams although no stream was requested.' : reply.reason;
    return { detail: '', faults: [(reply.kind === 'refused' && reply.fault) || fault] };
  }
  if (model.kind === 'chat') {
    for (const wire of route.wires) await tryWire(upstream, wire, route, faults);
    await tryStream(upstream, boundChat(model, ask, true).requestFor(route), faults);
  }
  const usage = readUsage(reply.data, model.kind);
  if (!usage) return { detail: '', faults: [`It reports no readable usage: ${ESTIMATED}`, ...faults] };
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
  const statedCost = reply.data.usage?.cost;
  if (typeof statedCost === 'number' && statedCost > Number(cost) / 1e9)
    faults.push(`It says that this cost ${statedCost} USD; by our price it is ${formatUsd(cost)} USD.`);
  const detail = `${usage.promptTokens} prompt and ${usage.completionTokens} completion tokens, ${formatUsd(cost)} USD by our price`;
  return { detail, faults };
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
  else if (!readUsage(reply.data, wire)) faults.push(`In ${wire} it reports no readable usage: ${ESTIMATED}`);
}

/** Sends the request as a stream and checks that it has an end and a usage. */
async function tryStream(upstream: Upstream, request: UpstreamRequest, faults: string[]): Promise<void> {
  const reply = await upstream.ask(request, newId('op'), true);
  if (reply.kind === 'answered') {
    if (!readUsage(reply.data, 'chat')) faults.push(`Asked for a stream, it reports no readable usage: ${ESTIMATED}`);
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

/** Describes a context length that differs from the one the upstream states; undefined if they agree. */
export function contextFault(contextLength: number, stated: StatedModel | undefined): string | undefined {
  const theirs = stated?.contextLength;
  if (theirs === undefined || theirs === contextLength) return undefined;
  if (contextLength < theirs)
    return `context_length is ${contextLength}, and it takes ${theirs} tokens: prompt tokens above ${contextLength} are given away. Set context_length to ${theirs}, or limit prompts there.`;
  return `context_length is ${contextLength}, and it takes ${theirs} tokens: longer prompts are held for, and then refused there. Set context_length to ${theirs}.`;
}

/**
 * Describes the bound learned for a route from counts above its bound, and the settings to use instead; undefined if
 * nothing was learned, or nothing of it is left at `now`.
 */
export function describeLearned({ learned, contextLength }: Route, now = 0): string | undefined {
  const { contextTokens } = learned;
  const { overheadTokens, permille } = fadedAt(learned, now);
  const causes = [
    ...(overheadTokens > 0
      ? [`It counted more than the bound of short prompts, so ${overheadTokens} tokens are added to each bound`]
      : []),
    ...(permille > 1000
      ? [`It counted more than the bound of long prompts, so the bound is raised by the factor ${permille / 1000}`]
      : []),
    ...(contextTokens ? [`It counted a prompt of ${contextTokens} tokens, above context_length ${contextLength}`] : []),
  ];
  if (causes.length === 0) return undefined;
  return `${causes.join('. ')}. Set prompt_overhead_tokens, tokens_per_byte or context_length: a change starts over. \`purser models forget ID\` forgets it.`;
}
