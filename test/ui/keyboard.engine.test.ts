import assert from 'node:assert/strict';
import test from 'node:test';
import type { Page } from 'playwright-core';
import { openChromium } from '../helper/chromium.ts';
import { openSample, pagesOf } from './sample.ts';

// Every page by keyboard alone, on a desk and on a phone, whose lists have another layout.

const SIZES = [
  { width: 1280, height: 860 },
  { width: 390, height: 844 },
];
/** A field for a date stops the Tab key up to four times. */
const STOPS_OF_DATE = 4;

/** Unfolds everything and notes which element gets the focus. It runs in the browser, which is why it is text. */
const WATCH = `(() => {
  for (const it of document.querySelectorAll('details')) it.open = true;
  window.reached = [];
  addEventListener('focusin', ({ target }) => window.reached.push(target));
  window.wanted = [...document.querySelectorAll('a[href], button, input, select, summary')]
    .filter((it) => it.checkVisibility() && !it.disabled && it.type !== 'hidden');
  return { count: window.wanted.length, dates: document.querySelectorAll('input[type=date]').length };
})()`;

const LEFT = 'window.wanted.filter((it) => !window.reached.includes(it)).length';

/** Returns what is wrong with the way that the focus went. */
const LOOK = `(() => {
  const faults = [];
  const nameOf = (it) => it.tagName.toLowerCase() + ' "' + (it.innerText || it.ariaLabel || it.name || '').trim().slice(0, 40) + '"';
  for (const it of window.wanted) if (!window.reached.includes(it)) faults.push(nameOf(it) + ' is not reached');
  const way = window.reached.filter((it, at, all) => all.indexOf(it) === at);
  for (const it of way) {
    it.focus();
    const { outlineStyle, outlineWidth } = getComputedStyle(it);
    if (it.matches(':focus-visible') && (outlineStyle === 'none' || parseFloat(outlineWidth) < 2)) faults.push(nameOf(it) + ' does not show the focus');
    const { top, bottom, left, right } = it.getBoundingClientRect();
    if (bottom <= 0 || top >= innerHeight || right <= 0 || left >= innerWidth) faults.push(nameOf(it) + ' is out of sight');
  }
  const groupOf = (it) => it.closest('tr, form, nav, .title, .card > header');
  for (const [at, it] of way.entries()) {
    const next = way[at + 1];
    if (!next || groupOf(it) === null || groupOf(it) !== groupOf(next)) continue;
    const [a, b] = [it.getBoundingClientRect(), next.getBoundingClientRect()];
    const isAfter = b.top >= a.bottom - 1 || (b.bottom > a.top && b.left >= a.right - 1);
    if (!isAfter) faults.push(nameOf(next) + ' comes after ' + nameOf(it) + ', and is shown before it');
  }
  return faults;
})()`;

async function faultsOn(page: Page): Promise<string[]> {
  const { count, dates } = (await page.evaluate(WATCH)) as { count: number; dates: number };
  const regions = await page.locator('[tabindex="0"]').count();
  const most = count + regions + dates * STOPS_OF_DATE;
  // Sent ahead, as by a key that is held down: to wait for each would cost an image of the page for each.
  await Promise.all(Array.from({ length: most }, () => page.keyboard.press('Tab')));
  // Whatever is left now was passed by, or a trap kept the focus from it.
  const left = (await page.evaluate(LEFT)) as number;
  return left < count ? ((await page.evaluate(LOOK)) as string[]) : ['the Tab key reaches nothing'];
}

test('every page can be used by keyboard: all is reached, in the order in which it is shown, and the focus is seen', async (t) => {
  const sample = await openSample(t, {}, 'batch import');
  const chromium = await openChromium(t, sample.url);
  if (!chromium) return;
  const { page } = await chromium.open();
  const faults: string[] = [];
  const { operator } = await pagesOf(sample);
  await page.goto((await sample.run('ui.link', {})).url);
  for (const size of SIZES) {
    await page.setViewportSize(size);
    for (const path of operator) {
      await page.goto(`${sample.url}${path}`);
      for (const it of await faultsOn(page)) faults.push(`${path}, ${size.width} wide: ${it}`);
    }
  }
  assert.deepEqual(faults.slice(0, 30), []);
  assert.deepEqual(chromium.faults, []);
});
