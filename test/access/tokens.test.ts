import assert from 'node:assert/strict';
import test from 'node:test';
import { openRouterKey } from '../../src/access/router-keys.ts';
import { deriveToken, hashToken } from '../../src/access/token.ts';
import { createTokens } from '../../src/access/tokens.ts';
import { newId } from '../../src/base/id.ts';
import { MASTER_KEY_ID, openBooks } from '../ledger/books.ts';

const tokenOf = (id: string) => deriveToken('wallet', Buffer.alloc(32, 7), id);

test('a token that was found is remembered until something else than a paid request is written', async (t) => {
  const { ledger, account, wallet } = await openBooks(t);
  const token = tokenOf('wal_1');
  const { id, accountId } = await wallet(await account(), { tokenHash: hashToken(token) });
  let changes = 0;
  const tokens = createTokens({ read: ledger.read, changeCount: () => changes });
  const known = { kind: 'wallet', wallet: { id, accountId } };
  assert.deepEqual(tokens.find(token), known);

  ledger.client.prepare('update wallet set token_hash = ? where id = ?').run(Buffer.alloc(32), id);
  assert.deepEqual(tokens.find(token), known, 'found without a look into the books');
  changes++;
  assert.equal(tokens.find(token), undefined);
});

test('what was not found is looked for again: a wallet may be opened at any time', async (t) => {
  const { ledger, account, wallet } = await openBooks(t);
  const tokens = createTokens({ read: ledger.read, changeCount: () => 0 });
  const token = tokenOf('wal_1');
  assert.equal(tokens.find(token), undefined);
  await wallet(await account(), { tokenHash: hashToken(token) });
  assert.equal(tokens.find(token)?.kind, 'wallet');
});

test('more tokens than are remembered are all found', async (t) => {
  const { ledger, account, wallet } = await openBooks(t);
  const accountId = await account();
  const made = Array.from({ length: 5 }, (_, i) => tokenOf(`wal_${i}`));
  const wallets = await Promise.all(made.map((it) => wallet(accountId, { tokenHash: hashToken(it) })));
  const tokens = createTokens({ read: ledger.read, changeCount: () => 0 }, 1);
  for (let turn = 0; turn < 2; turn++)
    made.forEach((it, i) => {
      const found = tokens.find(it);
      assert.equal(found?.kind === 'wallet' && found.wallet.id, wallets[i]?.id);
    });
});

test('what is remembered is bounded by the models of gateway keys, too', async (t) => {
  const { ledger, account, wallet } = await openBooks(t);
  const { id: walletId } = await wallet(await account());
  const made = await Promise.all(
    ['a', 'b'].map(async (prefix) => {
      const token = deriveToken('router', Buffer.alloc(32, 7), prefix);
      const fresh = { id: newId('key'), masterKeyId: MASTER_KEY_ID, tokenHash: hashToken(token), last4: 'hint' };
      const options = { models: Array.from({ length: 5 }, (_, i) => `${prefix}-${i}`) };
      await ledger.write((tx) => openRouterKey(tx, { walletId, options, fresh }, 1));
      return token;
    }),
  );
  const tokens = createTokens({ read: ledger.read, changeCount: () => 0 }, 8);
  const [first, second] = made.map((it) => tokens.find(it));
  assert.equal(tokens.find(made[0] as string) === first, false, 'both were forgotten: together they were too many');
  assert.deepEqual(tokens.find(made[0] as string), first);
  assert.notDeepEqual(first, second);
});
