import * as v from 'valibot';
import { walletOf } from '../../ledger/wallet.ts';
import { Refusal } from '../../refusal.ts';
import { ResourceList, ResourcePage } from '../../wire/compute.ts';
import { text } from '../../wire/parts.ts';
import { endpoint } from '../door.ts';

export const listResources = endpoint({
  summary: 'List resources across the account’s wallets, newest first, by pages of 100',
  scope: 'account',
  query: v.object({ wallet_id: v.optional(text(0, 200)), before: v.optional(text(0, 200)) }),
  answer: ResourcePage,
  refusals: ['not_found', 'invalid_cursor'],
  example: { answer: { resources: [], next_cursor: '' } },
  run(app, { principal, query }) {
    if (query.wallet_id) walletOf(app.ledger.read, principal.accountId, query.wallet_id);
    // Leases are not sold yet: no page has a next one, so no cursor was ever given out.
    if (query.before) throw new Refusal('invalid_cursor');
    return { body: { resources: [], next_cursor: '' } };
  },
});

export const listWalletResources = endpoint({
  summary: 'List the resources of one wallet',
  scope: 'account',
  answer: ResourceList,
  refusals: ['not_found'],
  example: { answer: { resources: [] } },
  run(app, { principal, params }) {
    walletOf(app.ledger.read, principal.accountId, params.id as string);
    return { body: { resources: [] } };
  },
});
