import { isMap, isSeq, parseDocument, type Scalar, type YAMLMap } from 'yaml';
import { formatUsd, Nanos, parseDecimal } from '../base/money.ts';
import { ConfigurationFault } from './fault.ts';
import type { ListedModel } from './price-list.ts';
import { hideVariables, showVariables } from './variables.ts';
import { createEdits } from './yaml-edits.ts';

/** A price that differs from the list's, in USD: of a million tokens, or of a request or an image. */
type PriceChange = {
  model: string;
  upstream: string;
  price: string;
  before_usd: string | null;
  after_usd: string;
};
export type ImportedPrices = {
  /** The file as it would be: comments stay. */
  text: string;
  changes: PriceChange[];
  /** Models that the list does not have, or has under several names at different prices. */
  unmatched: { model: string; upstream: string; candidates: string[] }[];
  /** Models whose long prompts cost more by the list: their tiers have to be written by hand. */
  tiered: string[];
};
type ImportOrder = {
  list: ReadonlyMap<string, ListedModel>;
  /** The names in the list of models that have another name there, by id. */
  names: ReadonlyMap<string, string>;
  /** Models of the list to be added, all at this upstream. */
  add: { names: readonly string[]; upstream: string | undefined };
};

const TOKEN_DECIMALS = 15;
const OUTPUT_TOKENS_MAX = 8192;
const EACH = new Set(['request', 'image']);

/**
 * Compares the prices of a settings file with a price list, and writes the list's into a copy of its text. `file` names it in
 * faults. Throws ConfigurationFault for a file that cannot be edited, and for missing models or upstreams.
 */
export function importPrices(file: string, source: string, { list, names, add }: ImportOrder): ImportedPrices {
  const hidden = hideVariables(source);
  const document = parseDocument(hidden, { prettyErrors: false });
  const edits = createEdits(hidden);
  const fault = (text: string) => new ConfigurationFault([`${file}: ${text}`]);
  if (document.errors.length) throw fault('it is not YAML: purser config check');
  const router = document.get('router');
  const models = itemsOf(router, 'models');
  const result: ImportedPrices = { text: source, changes: [], unmatched: [], tiered: [] };
  for (const model of models) {
    const id = String(model.get('id'));
    // Without a price of its own a route has the model's, and a pool in which each has one needs none of the model.
    const routes = ['upstreams', 'fallbacks'].flatMap((name) => itemsOf(model, name)).filter(pricingOf);
    const isPricedByServer = model.has('upstreams') && !pricingOf(model) && routes.length === routeCountOf(model);
    for (const route of isPricedByServer ? routes : [model, ...routes])
      compare(route, id, names.get(id) ?? String(route.get('upstream_model') ?? model.get('upstream_model') ?? id));
  }
  const added = add.names.map(modelOf);
  if (added.length) edits.addItems(router as YAMLMap, 'models', added);
  if (result.changes.length) result.text = showVariables(edits.apply());
  return result;

  function compare(route: YAMLMap, id: string, name: string): void {
    const upstream = upstreamOf(route);
    const candidates = candidatesFor(list, name);
    const listed = list.get(candidates[0] ?? '');
    if (!listed || candidates.length > 1) {
      result.unmatched.push({ model: id, upstream, candidates });
      return;
    }
    if (listed.hasTiers) result.tiered.push(id);
    const key = pricingOf(route);
    const pricing = key && route.get(key);
    if (key && (!isMap(pricing) || !pricing.items.length))
      throw fault(`the price of ${id} is not written as a map: change it by hand`);
    const fresh: Record<string, string> = {};
    for (const [price, { usd, perToken }] of pricesOf(listed)) {
      const node = isMap(pricing) ? (pricing.get(price, true) as Scalar | undefined) : undefined;
      const isPerToken = key === 'pricing' && !EACH.has(price);
      const before = node && showVariables(usdOf(node.source ?? String(node.value), isPerToken));
      if (before === usd) continue;
      result.changes.push({ model: id, upstream, price, before_usd: before ?? null, after_usd: usd });
      const after = isPerToken ? perToken : usd;
      if (node) edits.replace(node, JSON.stringify(after));
      else if (isMap(pricing)) edits.addPair(pricing, price, after);
      else fresh[price] = after;
    }
    if (!key) edits.addPair(route, 'pricing_per_million', fresh);
  }

  function modelOf(name: string): Record<string, unknown> {
    const listed = list.get(name);
    if (!listed) throw new ConfigurationFault([`the list has no ${JSON.stringify(name)} with a price of a token`]);
    const { upstream } = add;
    if (upstream === undefined) throw fault(`name the upstream to add ${name} at with --upstream`);
    if (!isMap(router) || !itemsOf(router, 'upstreams').some((it) => it.get('name') === upstream))
      throw fault(`there is no upstream ${JSON.stringify(upstream)} to add ${name} at: name one with --upstream`);
    const { contextLength, maxOutputTokens, kind, upstreamModel: id } = listed;
    if (!contextLength) throw fault(`the list does not say the context length of ${name}: add it by hand`);
    if (hideVariables(id) !== id || showVariables(id) !== id)
      throw fault(`${JSON.stringify(id)} would be read as a variable: add it by hand`);
    if (models.some((it) => String(it.get('id')) === id)) throw fault(`it has a model ${id} already`);
    const prices = pricesOf(listed);
    for (const [price, { usd }] of prices)
      result.changes.push({ model: id, upstream, price, before_usd: null, after_usd: usd });
    if (listed.hasTiers) result.tiered.push(id);
    return {
      id,
      ...(kind === 'chat' ? {} : { kind }),
      upstream,
      context_length: contextLength,
      ...(kind === 'chat' ? { max_output_tokens: maxOutputTokens ?? Math.min(OUTPUT_TOKENS_MAX, contextLength) } : {}),
      pricing_per_million: Object.fromEntries(prices.map(([price, { usd }]) => [price, usd])),
    };
  }
}

const itemsOf = (map: unknown, key: string): YAMLMap[] => {
  const list = isMap(map) ? map.get(key) : undefined;
  return isSeq(list) ? list.items.filter((it): it is YAMLMap => isMap(it)) : [];
};

/** Returns the number of servers of a pool and its fallbacks. */
function routeCountOf(model: YAMLMap): number {
  const lists = [model.get('upstreams'), model.get('fallbacks')].filter(isSeq);
  return lists.reduce((sum, { items }) => sum + items.length, 0);
}

/** Returns the name of the upstream of a route, or those of the servers of a pool. */
function upstreamOf(route: YAMLMap): string {
  const pool = route.get('upstreams');
  if (!isSeq(pool)) return String(route.get('upstream'));
  return pool.items.map((it) => String(isMap(it) ? it.get('upstream') : it)).join(', ');
}

/** Returns the prices of a listed model as they are shown and written: USD per million tokens, request and image; and USD per token. */
const pricesOf = ({ prices }: ListedModel) =>
  Object.entries(prices).map(
    ([price, perToken]) => [price, { perToken, usd: usdOf(perToken, !EACH.has(price)) }] as const,
  );

const pricingOf = (route: YAMLMap) => (['pricing', 'pricing_per_million'] as const).find((it) => route.has(it));

/** Formats a price as USD per million tokens or per request; returns it unchanged if it is not a price. */
function usdOf(text: string, isPerToken: boolean): string {
  try {
    return formatUsd(Nanos(parseDecimal(text, isPerToken ? TOKEN_DECIMALS : 9)));
  } catch {
    return text;
  }
}

/**
 * Returns the names of a model in the list: its own, otherwise those that end in it after a provider's name. Names with the
 * same prices count as one; several are returned only if their prices differ.
 */
function candidatesFor(list: ReadonlyMap<string, ListedModel>, name: string): string[] {
  if (list.has(name)) return [name];
  const ending = [...list.keys()].filter((it) => it.endsWith(`/${name}`));
  const prices = new Set(ending.map((it) => JSON.stringify(list.get(it)?.prices)));
  return prices.size === 1 ? ending.slice(0, 1) : ending;
}
