import * as v from 'valibot';
import { listResourcesOfWallet, pageResources } from '../../ledger/resource.ts';
import { walletOf } from '../../ledger/wallet.ts';
import { Refusal } from '../../refusal.ts';
import { ResourceList, ResourcePage, summaryOf } from '../../wire/compute.ts';
import { text } from '../../wire/parts.ts';
import { endpoint } from '../endpoint.ts';

export const listResources = endpoint({
  summary: 'List resources across the account’s wallets, newest first, by pages of 100',
  scope: 'account',
  query: v.object({ wallet_id: v.optional(text(0, 200)), before: v.optional(text(0, 200)) }),
  answer: ResourcePage,
  refusals: ['not_found', 'invalid_cursor'],
  example: { answer: { resources: [], next_cursor: '' } },
  run(app, { principal, query }) {
    if (query.wallet_id) walletOf(app.ledger.read, principal.accountId, query.wallet_id);
    const before = query.before || undefined;
    if (before !== undefined && !/^res_[0-9a-z]{26}$/.test(before)) throw new Refusal('invalid_cursor');
    const { page, next } = pageResources(app.ledger.read, principal.accountId, before, query.wallet_id || undefined);
    return { body: { resources: page.map((it) => summaryOf(app.ledger.read, it)), next_cursor: next ?? '' } };
  },
});

export const listWalletResources = endpoint({
  summary: 'List the resources of one wallet',
  scope: 'account',
  answer: ResourceList,
  refusals: ['not_found'],
  example: { answer: { resources: [] } },
  run(app, { principal, params }) {
    const { id } = walletOf(app.ledger.read, principal.accountId, params.id as string);
    return {
      body: { resources: listResourcesOfWallet(app.ledger.read, id).map((it) => summaryOf(app.ledger.read, it)) },
    };
  },
});
