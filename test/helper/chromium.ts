import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, type TestContext } from 'node:test';
import { type Browser, type BrowserContext, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { hasComponent } from './component.ts';

const CHROMIUM = '/usr/bin/chromium';
/** The rules of WCAG 2.2 at the levels A and AA. */
const ALL_RULES = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'];
/** The rules among them that concern colours. */
export const COLOUR_RULES = ['color-contrast', 'link-in-text-block'];
const axe = () => readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** A browser whose network ends at the given origins, and the faults that occurred in it. */
export type Chromium = {
  /** Opens a window with its own cookies, size and colours. */
  open(options?: BrowserContextOptions): Promise<{ page: Page; context: BrowserContext }>;
  /** Requests to other origins, script errors, refusals of the content security policy, and dialogs. */
  faults: string[];
};

/** One browser for all tests of a process, each of which has windows of its own: to start one takes two seconds. */
let shared: Promise<Browser> | undefined;
after(async () => (await shared)?.close());

/** Opens Debian's Chromium; undefined, and the test is skipped, where there is none. The windows of a test are closed with it. */
export async function openChromium(t: TestContext, ...origins: string[]): Promise<Chromium | undefined> {
  if (!hasComponent(t, 'chromium')) return undefined;
  shared ??= chromium.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu'],
    timeout: 0, // No limit: a step ends by what it waits for.
  });
  const browser = await shared;
  const faults: string[] = [];
  return {
    faults,
    async open(options = {}) {
      const context = await browser.newContext(options);
      t.after(() => context.close());
      await context.route('**', (route) => {
        const { origin } = new URL(route.request().url());
        if (origins.includes(origin)) return route.continue();
        faults.push(`asked for ${route.request().url()}`);
        return route.abort();
      });
      context.setDefaultTimeout(0);
      const page = await context.newPage();
      page.on('pageerror', (error) => faults.push(`script: ${error.message}`));
      page.on('dialog', (dialog) => {
        faults.push(`dialog: ${dialog.message()}`);
        void dialog.dismiss();
      });
      page.on('console', (message) => {
        if (/Content Security Policy|Refused to/i.test(message.text())) faults.push(`policy: ${message.text()}`);
      });
      return { page, context };
    },
  };
}

/**
 * Returns the rows of each table before which two others have the same markup: they differ in their words alone. It runs in the
 * browser, which is why it is text.
 */
const REPEATED_ROWS = `[...document.querySelectorAll('table')].flatMap((table) => {
  const counts = new Map();
  return [...table.querySelectorAll('tbody tr')].filter((row) => {
    const all = [row, ...row.querySelectorAll('*')];
    const names = (it) => it.getAttributeNames().filter((name) => name !== 'data-repeated');
    const markup = all.map((it) => [it.tagName, it.className, it.disabled, ...names(it)].join(' ')).join();
    counts.set(markup, (counts.get(markup) ?? 0) + 1);
    return counts.get(markup) > 2;
  });
})`;

/** Returns what axe finds, a line each. To find the colours behind each word takes most of its time: repeated rows are left out. */
const EXAMINE = `(async (rules) => {
  for (const row of ${REPEATED_ROWS}) row.toggleAttribute('data-repeated', true);
  const options = { runOnly: rules, resultTypes: ['violations'], iframes: false, preload: false };
  const { violations } = await axe.run({ include: document, exclude: ['[data-repeated]'] }, options);
  return violations.flatMap(({ id, nodes }) =>
    nodes.slice(0, 3).map((it) => id + ': ' + it.target.join(' ') + ': ' + it.failureSummary));
})`;

/** Returns the breaches of WCAG 2.2 AA that axe finds. The browser's debugger injects axe, past the page's own policy. */
export async function breachesOn(page: Page, rules = ALL_RULES): Promise<string[]> {
  await page.waitForLoadState(); // Words of a page that a click has led to are there before its style sheet.
  if (await page.evaluate('typeof axe === "undefined"')) await page.evaluate(axe());
  return (await page.evaluate(`${EXAMINE}(${JSON.stringify(rules)})`)) as string[];
}
