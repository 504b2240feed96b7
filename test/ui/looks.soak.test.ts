import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { breachesOn, COLOUR_RULES, openChromium } from '../helper/chromium.ts';
import { openTestServer } from '../helper/server.ts';
import { openAnswers } from './answers.ts';
import { openSample, pagesOf, type Sample } from './sample.ts';

// Every page in a real browser: in both colour schemes, on a phone and on a desk, with and without script.

const DESK = { width: 1280, height: 860 };
const PHONE = { width: 390, height: 844 };
/** The narrowest that has to do (WCAG 2.2, 1.4.10). */
const NARROW = { width: 320, height: 640 };
/** Wide enough for tables, too narrow for the widest. */
const TABLET = { width: 700, height: 900 };
/** The pictures of the documentation are made here, so that they show what there is. */
const PICTURES = process.env.PURSER_TEST_PICTURES;

/** Returns whether each list that is wider than its place shows it. It runs in the browser. */
const SIGNS = `[...document.querySelectorAll('.scroll')].filter((it) => it.scrollWidth > it.clientWidth)
  .map((it) => getComputedStyle(it).boxShadow !== 'none')`;

test('every page is accessible and fits, in both colour schemes, on a phone and on a desk', async (t) => {
  const sample = await openSample(t);
  const chromium = await openChromium(t, sample.url);
  if (!chromium) return;
  const faults: string[] = [];
  const { operator, account } = await pagesOf(sample);
  const { page, context } = await chromium.open();
  // Each page is loaded once: its style sheet alone depends on the scheme and the size.
  const look = async (path: string) => {
    await page.goto(`${sample.url}${path}`);
    await examine(path);
  };
  const examine = async (path: string) => {
    for (const viewport of [DESK, PHONE])
      for (const colorScheme of ['light', 'dark'] as const) {
        await page.setViewportSize(viewport);
        await page.emulateMedia({ colorScheme });
        const where = `${path}, ${colorScheme}, ${viewport.width} wide`;
        // What a dark scheme changes is colours.
        const breaches = await (colorScheme === 'light' ? breachesOn(page) : breachesOn(page, COLOUR_RULES));
        for (const breach of breaches) faults.push(`${where}: ${breach}`);
        const width = await page.evaluate('document.documentElement.scrollWidth');
        if ((width as number) > viewport.width) faults.push(`${where}: scrolls sideways to ${width}`);
      }
  };
  await look('/sign-in');
  await page.goto((await sample.run('ui.link', {})).url);
  for (const path of operator) await look(path);
  const [wallet] = sample.wallets as [Sample['wallets'][0]];
  for (const path of ['/wallets/wal_none', `/wallets/${wallet.id}?done=lowered-440-of-560`]) await look(path);
  await page.getByText('Change it').click();
  await page.getByRole('button', { name: 'Show its token' }).click();
  await page.getByText('Hand this token to the agent.').waitFor();
  await examine('the token of a wallet');
  await openAnswers(page, sample.url, examine);
  await context.clearCookies();
  await page.goto(`${sample.url}/sign-in`);
  await page.getByLabel('Account key').fill(sample.accountKey);
  await page.getByRole('button', { name: 'Sign in' }).click();
  for (const path of account) await look(path);
  assert.deepEqual(faults, []);
  assert.deepEqual(chromium.faults, []);
});

test('no page scrolls sideways on the narrowest screen, nor for a name or a reason without a space', async (t) => {
  const name = 'W'.repeat(80);
  const sample = await openSample(t, {}, name);
  const chromium = await openChromium(t, sample.url);
  if (!chromium) return;
  const body = { name, budget_usd: '0.10' };
  await sample.ask('POST', '/v1/run/wallets', { token: sample.evil.token, key: 'c', body });
  await sample.run('wallet.freeze', { id: sample.evil.id, reason: 'R'.repeat(500) });
  const { page } = await chromium.open({ viewport: NARROW });
  await page.goto((await sample.run('ui.link', {})).url);
  const { operator } = await pagesOf(sample);
  const { wallets } = await sample.run('wallet.list', {});
  const child = wallets.find((it) => it.parent_id === sample.evil.id);
  const faults: string[] = [];
  for (const path of [
    ...operator,
    `/wallets/${child?.id}`,
    `/wallets/${sample.evil.id}/freeze`,
    `/wallets/${sample.evil.id}/close`,
    `/wallets?parent=${sample.evil.id}`,
    `/leases?wallet=${sample.evil.id}`,
  ]) {
    await page.goto(`${sample.url}${path}`);
    const width = (await page.evaluate('document.documentElement.scrollWidth')) as number;
    if (width > NARROW.width) faults.push(`${path} scrolls sideways to ${width}`);
  }
  await page.setViewportSize(TABLET);
  const signs: boolean[] = [];
  for (const path of ['/wallets', '/operations', '/spend?by=wallet&and=model&range=7d&beside=before']) {
    await page.goto(`${sample.url}${path}`);
    signs.push(...((await page.evaluate(SIGNS)) as boolean[]));
  }
  assert.ok(signs.length > 0 && signs.every(Boolean), `lists that show that they go on: ${signs}`);
  assert.deepEqual(faults, []);
});

test('every page has the same words without script', async (t) => {
  const sample = await openSample(t);
  const chromium = await openChromium(t, sample.url);
  if (!chromium) return;
  const zone = { timezoneId: 'UTC' }; // Only the script knows another.
  const [withScript, without] = [await chromium.open(zone), await chromium.open({ ...zone, javaScriptEnabled: false })];
  for (const { page } of [withScript, without]) await page.goto((await sample.run('ui.link', {})).url);
  const { operator: paths } = await pagesOf(sample);
  for (const path of paths) {
    const texts: string[] = [];
    for (const { page } of [withScript, without]) {
      await page.goto(`${sample.url}${path}`);
      const text = await page.locator('main').innerText();
      const words = text.replace(/\b(not live|live|Copy)\b/g, '').replace(/\s+/g, ' ');
      // The server gets older between the two, and others write to the disk.
      texts.push(words.replace(/(?<=Up for ).*?(?= State)|(?<=Free on disk )[\d.]+ \w+/g, '…'));
    }
    assert.equal(texts[0], texts[1], path);
  }
  assert.deepEqual(chromium.faults, []);
});

test('the legend of an open wallet names what is delegated as soon as something is', async (t) => {
  const purser = await openTestServer(t);
  const chromium = await openChromium(t, purser.url);
  if (!chromium) return;
  const { id, token } = await purser.openWallet({ budget_cents: 500 });
  const { page } = await chromium.open();
  await page.goto((await purser.run('ui.link', {})).url);
  await page.goto(`${purser.url}/wallets/${id}`);
  const delegated = page.locator('.legend li').filter({ hasText: 'delegated' });
  assert.equal(await delegated.isVisible(), false);
  await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body: { name: 'child', budget_usd: '1.50' } });
  await delegated.waitFor();
  assert.match(await delegated.innerText(), /\$1\.50/);
  assert.deepEqual(chromium.faults, []);
});

test('the pictures of the documentation', async (t) => {
  if (!PICTURES) return t.diagnostic('PURSER_TEST_PICTURES names no folder to put them into');
  const sample = await openSample(t, {}, 'batch import');
  const chromium = await openChromium(t, sample.url);
  if (!chromium) return;
  mkdirSync(PICTURES, { recursive: true });
  sample.clock.advance(4 * 60);
  const [wallet] = sample.wallets as [Sample['wallets'][0], ...Sample['wallets']];
  const pictures = [
    ['now', '/'],
    ['wallet', `/wallets/${wallet.id}`],
    ['operations', '/operations?state=uncertain'],
    ['freeze', `/wallets/${wallet.id}/freeze`],
  ];
  for (const [kind, colorScheme, viewport] of [
    ['', 'light', DESK],
    ['-phone', 'dark', PHONE],
  ] as const) {
    const { page } = await chromium.open({ colorScheme, viewport });
    await page.goto((await sample.run('ui.link', {})).url);
    for (const [name, path] of pictures) {
      await page.goto(`${sample.url}${path}`);
      await page
        .locator('#live:not([hidden])')
        .waitFor({ timeout: 5000 })
        .catch(() => {});
      if (name === 'wallet')
        await page
          .getByRole('heading', { name: 'Where the money went' })
          .evaluate((it: { scrollIntoView(): void }) => it.scrollIntoView());
      await page.screenshot({ path: join(PICTURES, `${name}${kind}.png`) });
    }
  }
});
