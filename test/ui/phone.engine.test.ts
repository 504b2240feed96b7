import assert from 'node:assert/strict';
import test from 'node:test';
import { gzipSync } from 'node:zlib';
import type { Page } from 'playwright-core';
import { assets } from '../../src/ui/layout.ts';
import { openChromium } from '../helper/chromium.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { openAnswers } from './answers.ts';
import { fillWithLong, LONG, UNBROKEN, WIDE } from './long.ts';
import { openMany, openSample, pagesOf } from './sample.ts';

// Every page on a phone: nothing is cut or scrolls sideways, and each row of a list begins with its name, amount and button.

const PHONE = { width: 390, height: 844 };
const COUNT = 10_000;
const BYTES_MAX = 40 * 1024;
const ASSET_BYTES = Object.values(assets).reduce((sum, it) => sum + it.gzipped.length, 0);
/** Returns what is wrong with the page that is shown. It runs in the browser, which is why it is text. */
const LOOK = `(() => {
  for (const it of document.querySelectorAll('details')) it.open = true;
  const width = document.documentElement.clientWidth;
  const faults = [];
  const nameOf = (it) => it.tagName.toLowerCase() + (it.className && '.' + it.className) + ' ' + it.textContent.trim().slice(0, 40);
  if (document.documentElement.scrollWidth > width) faults.push('the page scrolls to ' + document.documentElement.scrollWidth);
  const isUnseen = (it) => !it.checkVisibility() || it.closest('.hidden, .skip, thead') !== null;
  for (const it of document.querySelectorAll('body *')) {
    if (isUnseen(it)) continue;
    const { left, right } = it.getBoundingClientRect();
    if (left < 0 || right > width + 0.5) faults.push(nameOf(it) + ' lies outside the picture');
    if (it.closest('svg, input, select')) continue;
    const { overflowX, textOverflow } = getComputedStyle(it);
    if (it.scrollWidth > it.clientWidth + 1 && overflowX !== 'visible' && textOverflow !== 'ellipsis')
      faults.push(nameOf(it) + ' is ' + it.scrollWidth + ' wide in ' + it.clientWidth);
  }
  for (const row of document.querySelectorAll('tbody tr')) {
    const cells = [...row.cells].filter((it) => it.checkVisibility() && it.textContent !== '');
    const [first, others] = [[], []];
    for (const it of cells) (it.matches('.name, .amount, .actions') ? first : others).push(it);
    const comes = (a, b) => a.bottom <= b.top + 1 || (a.top < b.bottom && a.right <= b.left + 1);
    for (const early of first)
      for (const late of others)
        if (!comes(early.getBoundingClientRect(), late.getBoundingClientRect()))
          faults.push(nameOf(late) + ' comes before ' + nameOf(early));
    const name = first.find((it) => it.matches('.name'));
    if (!name) faults.push(nameOf(row) + ' has no name');
    for (const it of first)
      if (it !== name && !comes(name.getBoundingClientRect(), it.getBoundingClientRect())) faults.push(nameOf(it) + ' comes before the name');
  }
  return { faults, rows: document.querySelectorAll('tbody tr').length };
})()`;

type Looked = { faults: string[]; rows: number };

async function faultsOn(
  page: Page,
  url: string,
  paths: readonly string[],
): Promise<{ faults: string[]; rows: number }> {
  const found: string[] = [];
  let count = 0;
  for (const path of paths) {
    const response = await page.goto(`${url}${path}`);
    const bytes = gzipSync((await response?.body()) as Buffer).length + ASSET_BYTES;
    if (bytes > BYTES_MAX) found.push(`${path} and what it loads has ${bytes} bytes, compressed`);
    const { faults, rows } = (await page.evaluate(LOOK)) as Looked;
    for (const it of faults) found.push(`${path}: ${it}`);
    count += rows;
  }
  return { faults: found.slice(0, 30), rows: count };
}

const MAIN = [
  '/',
  '/accounts',
  '/wallets',
  '/leases',
  '/operations',
  '/spend',
  '/models',
  '/journal',
  '/events',
  '/settings',
];

async function onPhone(t: Parameters<typeof openChromium>[0], purser: TestServer) {
  const chromium = await openChromium(t, purser.url);
  if (!chromium) return undefined;
  const { page } = await chromium.open({ viewport: PHONE });
  await page.goto((await purser.run('ui.link', {})).url);
  return page;
}

test('a phone shows an empty installation, and one with a single wallet and a single request', async (t) => {
  const purser = await openTestServer(t);
  const page = await onPhone(t, purser);
  if (!page) return;
  const own = [...MAIN, `/accounts/${purser.accountId}`, '/wallets/new', '/operations?state=uncertain'];
  assert.deepEqual((await faultsOn(page, purser.url, own)).faults, []);
  const { id, token } = await purser.openWallet({ name: 'a' });
  assert.equal((await purser.chat(token)).status, 200);
  const { operations } = await purser.run('operation.list', { limit: 1 });
  const { faults, rows } = await faultsOn(page, purser.url, [
    ...own,
    `/wallets/${id}`,
    `/operations/${operations[0]?.id}`,
  ]);
  assert.deepEqual(faults, []);
  assert.ok(rows > 0);
});

test(`a phone shows ${COUNT} wallets and requests, sums of nine digits and long names`, async (t) => {
  const sample = await openSample(t, { creditCents: 2_000_000 }, UNBROKEN);
  const page = await onPhone(t, sample);
  if (!page) return;
  await openMany(sample, COUNT, (at) => `${[LONG, WIDE, UNBROKEN, 'a'][at % 4]} ${at}`.slice(-80));
  await fillWithLong(sample, COUNT);
  const { operator } = await pagesOf(sample);
  const { faults, rows } = await faultsOn(page, sample.url, [...MAIN, ...operator]);
  await openAnswers(page, sample.url, async (name) => {
    const looked = (await page.evaluate(LOOK)) as Looked;
    assert.ok(looked.rows > 0, name);
    for (const it of looked.faults) faults.push(`${name}: ${it}`);
  });
  assert.deepEqual(faults, []);
  assert.ok(rows > 500, `${rows} rows`);
});
