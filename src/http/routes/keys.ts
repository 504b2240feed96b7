import * as v from 'valibot';
import { listKeys as keysOf } from '../../access/keys.ts';
import * as writes from '../../access/writes.ts';
import { KeyList, KeyRequest, keyRecord, NewKey, RevokedKey, revokedKey } from '../../wire/key.ts';
import { endpoint } from '../endpoint.ts';
import { PAGE_QUERY, pageOf } from '../page.ts';

const EXAMPLE = {
  id: 'key_01k9v3c2mq8r5t7w1x4z6b0d2f',
  name: 'ci',
  prefix: 'cnv_live_',
  last4: 'x9Q2',
  created_at: 1795000000,
  last_used_at: null,
  revoked_at: null,
};

export const listKeys = endpoint({
  summary: 'List the account’s keys, never their secrets, newest first; `before` gives the next page',
  scope: 'account',
  query: v.strictObject(PAGE_QUERY),
  refusals: ['invalid_cursor'],
  answer: KeyList,
  example: { answer: { keys: [EXAMPLE] } },
  run: (app, { principal, query }) => ({
    body: { keys: keysOf(app.ledger.read, principal.accountId, pageOf(query, 'key')).map(keyRecord) },
  }),
});

export const createAccountKey = endpoint({
  summary: 'Create an account key; its secret is in this answer and nowhere else',
  scope: 'session',
  body: KeyRequest,
  status: 201,
  answer: NewKey,
  refusals: ['account_suspended'],
  example: { body: { name: 'ci' }, answer: { ...EXAMPLE, key: 'cnv_live_…' } },
  async run(app, { principal, body }) {
    const order = {
      kind: 'account' as const,
      accountId: principal.accountId,
      name: body.name,
      mintedBy: principal.kind === 'session' ? 'session' : principal.keyId,
    };
    const now = app.clock.now();
    const { key, token } = await app.ledger.write(writes.createKey, { order, now });
    return { body: { ...keyRecord(key), key: token } };
  },
});

export const deleteKey = endpoint({
  summary: 'Revoke an account key at once; the second time changes nothing',
  scope: 'session',
  answer: RevokedKey,
  refusals: ['not_found'],
  example: { answer: { id: EXAMPLE.id, revoked: true, revoked_at: 1795000100 } },
  async run(app, { principal, params }) {
    const now = app.clock.now();
    const key = await app.ledger.write(writes.revokeKey, {
      id: params.id as string,
      kind: 'account',
      accountId: principal.accountId,
      now,
    });
    return { body: revokedKey(key) };
  },
});
