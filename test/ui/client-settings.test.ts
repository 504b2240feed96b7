import assert from 'node:assert/strict';
import test from 'node:test';
import { clientSettings } from '../../src/wire/client-settings.ts';
import { openTestServer } from '../helper/server.ts';
import { asAccount, asOperator, type Browser, EVIL } from './sample.ts';

const escaped = (text: string) =>
  text
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;')
    .replaceAll('"', '&quot;')
    .replaceAll("'", '&#39;');

test('the page of a wallet has the block of each client to copy, by any model for chats, and no secret', async (t) => {
  const purser = await openTestServer(t, {
    change: (settings) => {
      const [first] = settings.router.models.filter(({ kind = 'chat' }) => kind === 'chat');
      const odd = { ...first, id: EVIL } as typeof first & object;
      return { ...settings, router: { ...settings.router, models: [...settings.router.models, odd] } };
    },
  });
  const { id } = await purser.openWallet();
  const shows = async (browser: Browser) => {
    const { html: plain } = await browser.get(`/wallets/${id}`);
    assert(plain.includes('<details class="card" id="client"><summary>'));
    for (const client of ['openai', 'claude', 'codex', 'continue', 'pi'] as const) {
      const { html } = await browser.get(`/wallets/${id}?client=${client}&model=${encodeURIComponent(EVIL)}`);
      const model = purser.app.catalogue.find(EVIL);
      const baseUrl = `${purser.url}/v1/router`;
      const { block } = clientSettings(client, { baseUrl, apiKey: undefined, model });
      assert(html.includes('<details class="card" id="client" open>'));
      assert(html.includes(`<pre>${escaped(block)}</pre>`), html);
      assert(html.includes(`data-copy="${escaped(block)}"`));
      assert(!html.includes(EVIL) && !/svc_(agent|router)_/.test(html));
    }
    const { html: unknown } = await browser.get(`/wallets/${id}?client=constructor&model=nope`);
    assert(unknown.includes('export OPENAI_MODEL='));
  };
  await shows(await asOperator(purser));
  await shows(await asAccount(purser));
});
