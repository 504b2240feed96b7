import { createKey, listKeys as keysOf, revokeKey } from '../../access/keys.ts';
import { KeyList, KeyRequest, keyRecord, NewKey, RevokedKey, revokedKey } from '../../wire/key.ts';
import { endpoint } from '../endpoint.ts';

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
  summary: 'List the account’s keys, never their secrets',
  scope: 'account',
  answer: KeyList,
  example: { answer: { keys: [EXAMPLE] } },
  run: (app, { principal }) => ({ body: { keys: keysOf(app.ledger.read, principal.accountId).map(keyRecord) } }),
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
    const { key, token } = await app.ledger.write((tx) => createKey(tx, order, now));
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
    const key = await app.ledger.write((tx) => revokeKey(tx, params.id as string, 'account', now, principal.accountId));
    return { body: revokedKey(key) };
  },
});
