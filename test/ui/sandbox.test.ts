import assert from 'node:assert/strict';
import test from 'node:test';
import { openE2b } from '../e2b/shared.ts';
import { asAccount, asOperator } from './sample.ts';

test('where leases are listed, one that E2B’s SDKs rented has its template and their id of it', async (t) => {
  const { purser, wallet, create } = await openE2b(t);
  const { sandboxID } = (await create()).body;
  const named = new RegExp(`base <code class="id">${sandboxID}</code>`);
  for (const signIn of [asOperator, asAccount]) {
    const browser = await signIn(purser);
    for (const path of ['/leases', `/leases/res_${sandboxID}`, `/wallets/${wallet.id}`])
      assert.match((await browser.get(path)).html, named, path);
  }
  const plain = (await purser.lease(wallet.token)).body;
  const { html } = await (await asOperator(purser)).get(`/leases/${plain.id}`);
  assert.doesNotMatch(html, /[Ss]andbox/);
});
