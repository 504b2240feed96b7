import * as v from 'valibot';
import { RESOURCE_STATUSES } from '../../db/enums.ts';
import { pageResources, type Resource } from '../../ledger/resource.ts';
import { walletOf } from '../../ledger/wallet.ts';
import { ResourceList, ResourcePage, summaryOf } from '../../wire/compute.ts';
import { text } from '../../wire/parts.ts';
import { endpoint } from '../endpoint.ts';
import { PAGE_QUERY, pageOf, statusQuery } from '../page.ts';

const QUERY = { ...PAGE_QUERY, status: statusQuery(RESOURCE_STATUSES) };
const statusOf = (query: Record<string, string>) => query.status as Resource['status'] | undefined;

export const listResources = endpoint({
  summary: 'List resources across the account’s wallets, newest first, by pages of 100',
  scope: 'account',
  query: v.strictObject({ ...QUERY, wallet_id: v.optional(text(0, 200)) }),
  answer: ResourcePage,
  refusals: ['not_found', 'invalid_cursor'],
  example: { answer: { resources: [], next_cursor: '' } },
  run(app, { principal, query }) {
    if (query.wallet_id) walletOf(app.ledger.read, principal.accountId, query.wallet_id);
    const filter = {
      accountId: principal.accountId,
      walletId: query.wallet_id || undefined,
      status: statusOf(query),
    };
    const { page, next } = pageResources(app.ledger.read, filter, pageOf(query, 'res'));
    return { body: { resources: page.map((it) => summaryOf(app, it)), next_cursor: next ?? '' } };
  },
});

export const listWalletResources = endpoint({
  summary: 'List the resources of one wallet, newest first, at most 100; `before` gives the next page',
  scope: 'account',
  query: v.strictObject(QUERY),
  answer: ResourceList,
  refusals: ['not_found', 'invalid_cursor'],
  example: { answer: { resources: [] } },
  run(app, { principal, params, query }) {
    const { id } = walletOf(app.ledger.read, principal.accountId, params.id as string);
    const { page } = pageResources(app.ledger.read, { walletId: id, status: statusOf(query) }, pageOf(query, 'res'));
    return { body: { resources: page.map((it) => summaryOf(app, it)) } };
  },
});
