import { parseUsd } from '../../base/money.ts';
import { parseJson } from '../../base/parse-json.ts';
import { Refusal } from '../../base/refusal.ts';
import { duration } from '../../base/shown.ts';
import { findOperation, type Operation } from '../../ledger/operation.ts';
import {
  countOperations,
  EXAMINED_COUNT,
  type OperationFilter,
  searchOperations,
} from '../../ledger/operation-search.ts';
import { findResource } from '../../ledger/resource.ts';
import { findWallet } from '../../ledger/wallet.ts';
import { limitedTo, operationWith } from '../../operator/find.ts';
import { costsOf, LISTED_STATES } from '../../wire/operation.ts';
import { EMPTY, type Html, type HtmlValue, html } from '../html.ts';
import type { Page } from '../layout.ts';
import { address, card, type Field, filters, link, money, named, outside, pager, state, table } from '../parts.ts';
import type { Go } from '../sign-in.ts';
import { RANGES, spanIn } from '../span.ts';
import { ago, when } from '../times.ts';
import { subjectChoices, tagIn, type Visit } from '../visit.ts';
import { tokensOf } from './wallet.ts';
import { PAGE_COUNT } from './wallets.ts';

const STATE_NAMES: Record<(typeof LISTED_STATES)[number], string> = {
  reserved: 'on hold',
  uncertain: 'unknown outcome',
  settled: 'settled',
  charged: 'charged',
  released: 'released',
};

/**
 * Shows operations: those of unknown outcome, by age; or all of them, newest first; by the filters in the address. The id of an
 * operation or of a request leads to that operation.
 */
export async function listPage(visit: Visit): Promise<Page | Go> {
  const { query } = visit;
  const id = textIn(query, 'id');
  const sought = id === undefined ? undefined : seek(visit, id);
  if (typeof sought === 'object') return { to: `/operations/${sought.id}` };
  return {
    title: 'Operations',
    body: html`
    ${filters('/operations', ...fieldsOf(visit))}
    ${sought === undefined ? await list(visit, filterIn(visit)) : html`<p class="notice bad" role="alert">${sought}</p>`}`,
    section: '/operations',
  };
}

const textIn = (query: URLSearchParams, name: string): string | undefined => query.get(name)?.trim() || undefined;

/** Returns the operation with this id, or that the request with this id began; otherwise why there is none to show. */
function seek({ app }: Visit, id: string): Operation | string {
  try {
    return operationWith(app.ledger.read, id);
  } catch (error) {
    if (error instanceof Refusal) return error.message;
    throw error;
  }
}

/** Returns the filter in the address. Throws `invalid_request`, `not_found` and `conflict`. */
function filterIn({ app, query, now, zone }: Visit): OperationFilter {
  const [wallet, account] = ['wallet', 'account'].map((name) => textIn(query, name));
  const span = spanIn(query, zone, now);
  return {
    ...limitedTo(app.ledger.read, { wallet, account }),
    state: LISTED_STATES.find((it) => it === query.get('state')),
    subject: textIn(query, 'model'),
    tag: tagIn({ query }),
    since: span?.since,
    until: span?.until,
    ...costsOf(amountIn(textIn(query, 'min')), amountIn(textIn(query, 'max'))),
  };
}

function amountIn(text: string | undefined) {
  if (text === undefined) return undefined;
  if (!/^\$?\d{1,7}(\.\d{1,9})?$/.test(text))
    throw new Refusal('invalid_request', 'Write the cost in dollars, as 0.05 or 5.');
  return parseUsd(text.replace('$', ''));
}

async function list(visit: Visit, filter: OperationFilter): Promise<Html> {
  const { app, query, path } = visit;
  const { read } = app.ledger;
  const isUncertain = filter.state === 'uncertain';
  const { operations, goesOnAfter, isCut } = await searchOperations(read, filter, {
    after: textIn(query, 'after'),
    limit: PAGE_COUNT,
    first: isUncertain ? 'oldest' : 'newest',
    examinedMax: EXAMINED_COUNT,
  });
  const total = countOperations(read, filter);
  const isLater = query.has('after');
  const reached = isCut && goesOnAfter !== undefined ? findOperation(read, goesOnAfter) : undefined;
  const pages = pager(
    operations.length,
    total,
    isLater ? address(path, query, { after: undefined }) : undefined,
    goesOnAfter && address(path, query, { after: goesOnAfter }),
    isUncertain ? ['Oldest', 'More'] : ['Newest', isCut ? 'Search further' : 'Older'],
  );
  const isEmpty = operations.length === 0 && !isLater && !isCut;
  return html`
    ${isUncertain && operations.length > 0 && html`<p class="notice info">Purser does not know whether these happened. Each keeps its hold until evidence, the policy of its model server, or you decide.</p>`}
    ${card('Operations', html`${rowsOf(visit, operations, isUncertain)}${reached && html`<p class="weak">Searched back to ${when(reached.createdAt, visit)}.</p>`}${!isEmpty && pages}`, isUncertain ? 'oldest first' : 'newest first')}`;
}

/** Renders operations. One of unknown outcome has neither an end nor tokens, but a reason, which needs room. */
function rowsOf(visit: Visit, operations: readonly Operation[], isUncertain: boolean): Html {
  const { app, query } = visit;
  // A filter may leave out some whose outcome is unknown.
  const areNone =
    isUncertain && operations.length === 0 && countOperations(app.ledger.read, { state: 'uncertain' }) === 0;
  const rows = operations.map((it) => {
    const { reason } = it;
    const subject = link(`/operations/${it.id}`, outside(it.subject));
    const wallet = link(`/wallets/${it.walletId}`, named(it.walletId, findWallet(app.ledger.read, it.walletId)?.name));
    const tags = tagsOf(it).map(([name, value]) => {
      const tag = `${name}=${value}`;
      return html`${link(address('/operations', query, { tag, after: undefined, id: undefined }), outside(tag))} `;
    });
    return [
      isUncertain || reason === null ? subject : html`${subject} <span class="weak">${outside(reason)}</span>`,
      state(it.outcome ?? it.state),
      wallet,
      ago(it.uncertainAt ?? it.createdAt, visit),
      ...(isUncertain ? [] : [tookOf(it), tokensOf(it.usage)]),
      routeOf(visit, it),
      tags,
      money(it.charge ?? it.hold),
      ...(isUncertain ? [outside(reason ?? '')] : []),
    ];
  });
  return table(
    'Operations',
    [
      { label: 'For' },
      { label: 'State' },
      { label: 'Wallet' },
      { label: isUncertain ? 'Unknown since' : 'When', kind: 'time' },
      ...(isUncertain
        ? []
        : [
            { label: 'Took', kind: 'number' as const },
            { label: 'Tokens', kind: 'number' as const },
          ]),
      { label: 'Route' },
      { label: 'Tags' },
      { label: isUncertain ? 'Held' : 'Charged or held', kind: 'money' },
      ...(isUncertain ? [{ label: 'Reason' }] : []),
    ],
    rows,
    areNone ? 'No outcome is unknown. Nothing has to be resolved.' : 'No operation is like that.',
  );
}

/** Returns how long an operation took, from its hold to its settlement: the books have whole seconds. */
export function tookOf({ createdAt, settledAt }: Operation): string {
  if (settledAt === null) return '–';
  return settledAt === createdAt ? '<1 s' : duration(settledAt - createdAt);
}

/** Returns the tags of an operation. */
export const tagsOf = ({ tags }: Operation): [name: string, value: string][] =>
  tags === null ? [] : Object.entries(parseJson(tags) as Record<string, string>);

/**
 * Renders the route that a request took: the model server, and where that has several routes of the model, its name there; for a
 * lease the backend. The books do not repeat it for a model with one route: it is then the model's present one.
 */
export function routeOf({ app }: Visit, { usage, resourceId, subject }: Operation): HtmlValue {
  if (resourceId !== null) return findResource(app.ledger.read, resourceId)?.backend ?? '';
  const { upstream, upstream_model: model } = (usage === null ? {} : parseJson(usage)) as Record<string, unknown>;
  if (typeof upstream === 'string')
    return html`${outside(upstream)}${typeof model === 'string' && html` <span class="weak">${outside(model)}</span>`}`;
  const routes = app.catalogue.get(subject)?.routes ?? [];
  return routes.length === 1 && usage !== null ? html`<span class="weak">${routes[0]?.upstream ?? ''}</span>` : EMPTY;
}

/** Returns the fields of the filters: those that are always shown, and those that are folded. */
function fieldsOf(visit: Visit): [Field[], { more: { title: string; fields: Field[]; isOpen: boolean } }] {
  const { query, zone } = visit;
  const text = (name: string) => textIn(query, name) ?? '';
  const folded: Field[] = [
    { name: 'from', label: 'First day', value: text('from'), type: 'date' },
    { name: 'to', label: 'Last day', value: text('to'), type: 'date' },
    { name: 'zone', label: 'Time zone', value: zone },
    { name: 'wallet', label: 'Wallet', value: text('wallet'), placeholder: 'name or id' },
    { name: 'account', label: 'Account', value: text('account'), placeholder: 'name or id' },
    { name: 'tag', label: 'Tag', value: tagIn(visit) ?? '', placeholder: 'team=red' },
    { name: 'min', label: 'Cost from, in dollars', value: text('min'), inputmode: 'decimal', placeholder: '0.05' },
    { name: 'max', label: 'Cost to, in dollars', value: text('max'), inputmode: 'decimal', placeholder: '5' },
  ];
  const isOpen = folded.some(({ name }) => name !== 'zone' && text(name) !== '');
  return [
    [
      { name: 'id', label: 'Request or operation', value: text('id'), placeholder: 'req_… or op_…' },
      {
        name: 'state',
        label: 'State',
        value: text('state'),
        options: [['', 'all'], ...LISTED_STATES.map((it) => [it, STATE_NAMES[it]] as const)],
      },
      { name: 'model', label: 'Model or slot', value: text('model'), options: subjectChoices(visit, text('model')) },
      {
        name: 'range',
        label: 'Begun',
        value: text('range'),
        options: [['', 'at any time'], ...Object.entries(RANGES).map(([name, range]) => [name, range.text] as const)],
      },
    ],
    { more: { title: 'Days, wallet, tag and cost', fields: folded, isOpen } },
  ];
}
