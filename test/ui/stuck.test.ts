import assert from 'node:assert/strict';
import test from 'node:test';
import { beginNewEpoch } from '../../src/lease/report-only.ts';
import { beginClosing, noteCleanup } from '../../src/ledger/closing.ts';
import { writeWith } from '../helper/closures.ts';
import { openTestServer } from '../helper/server.ts';
import { completion, failure, reset } from '../helper/upstream.ts';
import { openMemoryServer } from '../lease/leases.ts';
import { asOperator, openMany } from './sample.ts';

/** What *Now* says needs a person, as text: one line each, and since when. */
function attentionOn(html: string): string[] {
  const [list = ''] = /<ul class="attention">.*?<\/ul>/s.exec(html) ?? [];
  return [...list.matchAll(/<li.*?<\/li>/gs)].map(([it]) =>
    it
      .replace(/<[^>]+>/g, ' ')
      .replace(/\s+/g, ' ')
      .trim(),
  );
}

test('everything that is stuck says since when', async (t) => {
  const purser = await openMemoryServer(t, {
    unknownCountMax: 1000,
    settings: {
      close_wait_seconds: 1,
      events: { receivers: [{ name: 'deaf', url: 'http://127.0.0.1:9/', secret: `whsec_${'A'.repeat(32)}` }] },
    },
  });
  const { clock, upstream } = purser;
  const [closing, frozen, other] = [
    await purser.openWallet({ name: 'does not close', budget_cents: 500, expires_in_seconds: 86_400 }),
    await purser.openWallet({ name: 'frozen one' }),
    await purser.openWallet({ name: 'of a refused key' }),
  ];
  await purser.rent(closing.token);
  purser.memory.before.destroy = () => {
    throw new Error('no answer');
  };
  const browser = await asOperator(purser);
  assert.deepEqual(attentionOn((await browser.get('/')).html), []);

  const suspended = await purser.run('account.create', { name: 'suspended' });
  await purser.run('account.suspend', { id: suspended.id });
  clock.advance(60);
  await purser.run('wallet.freeze', { id: frozen.id });
  clock.advance(60);
  await assert.rejects(purser.run('wallet.close', { id: closing.id }), { code: 'cleanup_pending' });
  clock.advance(60);
  upstream.handle = failure(401);
  await purser.chat(other.token);
  clock.advance(60);
  await purser.run('freeze', {});
  clock.advance(60);
  const said = attentionOn((await browser.get('/')).html);
  const line = (part: RegExp) =>
    said.find((it) => part.test(it)) ?? assert.fail(`${part} is not in ${said.join('\n')}`);
  assert.match(line(/suspended/), /^1 account suspended for 5 min Accounts$/);
  assert.match(line(/wallet frozen/), /^1 wallet frozen for 4 min Wallets$/);
  assert.match(line(/does not close/), / for 3 min Look$/);
  assert.match(line(/does not answer as it should/), /^The model server local does .*401.* for 2 min Models$/);
  assert.match(line(/The installation is frozen/), / for 1 min Settings$/);
  assert.match(line(/Leases fail/), / for 3 min Leases$/);
  const { html: leases } = await browser.get('/leases');
  assert.match(
    leases,
    /<span class="left" data-live="res_\w+\.left">does not stop</,
    'the strip has the words of the stream',
  );
  assert.match(leases, /does not stop<\/span>; tried \d+ times?/);
  assert.match(line(/wait to be delivered/), / for \d min Events$/);
  const { html } = await browser.get(`/wallets/${closing.id}`);
  assert.match(html, /It spends nothing any more since <time[\s\S]*?3 min ago/);
  assert.match((await browser.get('/models')).html, />failing<\/span>[\s\S]*?2 min ago/);

  await purser.run('unfreeze', {});
  upstream.handle = completion();
  await purser.chat(other.token);
  const back = await upstream.leave();
  const status = async () => (await purser.run('status', {})).upstreams[0];
  assert.deepEqual(
    [(await status())?.up, (await status())?.failing_since],
    [false, purser.app.clock.now()],
    'since it was noticed',
  );
  clock.advance(600);
  assert.match(
    attentionOn((await browser.get('/')).html).join('\n'),
    /local cannot be reached \(.*\) for 10 min Models/,
  );
  await back();
  assert.deepEqual([(await status())?.up, (await status())?.failing_since], [true, null]);
  upstream.handle = reset;
  await purser.chat(other.token, { model: 'flat' });
  clock.advance(120);
  assert.match(
    attentionOn((await browser.get('/')).html).join('\n'),
    /1 operation with an unknown outcome, .* for 2 min Resolve/,
  );

  const since = purser.app.clock.now();
  await purser.reopen();
  await purser.app.ledger.write(beginNewEpoch, {
    ...{ reason: 'a test', acceptedFaults: 0, above: 0 },
    ...{ because: 'a test', now: since },
  });
  clock.advance(60);
  const later = attentionOn((await browser.get('/')).html);
  assert.ok(
    later.some((it) => /^Report only: .* for 1 min$/.test(it)),
    later.join('\n'),
  );
  assert.match(later.join('\n'), /does not close.*Look/);
});

test('more wallets than are listed that do not close are counted, with the way to them', async (t) => {
  const purser = await openMemoryServer(t, { settings: { close_wait_seconds: 1 } });
  purser.memory.before.destroy = () => {
    throw new Error('no answer');
  };
  const stuck = Array.from({ length: 7 }, async (_, i) => {
    const { id, token } = await purser.openWallet({ name: `w${i}` });
    await purser.rent(token);
    await assert.rejects(purser.run('wallet.close', { id }), { code: 'cleanup_pending' });
  });
  await Promise.all(stuck);
  const { html } = await (await asOperator(purser)).get('/');
  assert.ok(attentionOn(html).includes('2 more wallets do not close Wallets'), attentionOn(html).join('\n'));
  assert.match(html, /href="\/wallets\?state=closing"/);
});

test('wallets that do not close are found and counted among any number that are just closing', async (t) => {
  const [fresh, stuck] = [101, 103];
  const purser = await openTestServer(t, { creditCents: (fresh + stuck) * 100 });
  await openMany(purser, fresh + stuck, (at) => `w${at}`);
  const { app } = purser;
  const now = app.clock.now();
  const ids = app.ledger.client.prepare('select id from wallet order by id').pluck().all() as string[];
  await writeWith(app.ledger, (tx) => {
    for (const [at, id] of ids.entries()) {
      beginClosing(tx, id, 'account_request', now);
      for (let attempt = 0; attempt < (at < fresh ? 1 : 2); attempt++) noteCleanup(tx, id, 'no answer');
    }
  });
  const said = attentionOn((await (await asOperator(purser)).get('/')).html);
  assert.equal(said.filter((it) => /does not close: no answer/.test(it)).length, 5);
  assert.ok(said.includes(`${stuck - 5} more wallets do not close Wallets`), said.join('\n'));
});
