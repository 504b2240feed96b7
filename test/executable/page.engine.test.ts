import assert from 'node:assert/strict';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import test, { type TestContext } from 'node:test';
import type { Locator } from 'playwright-core';
import { openOidcIssuer, PAGE_CLIENT } from '../access/oidc-issuer.ts';
import { type Chromium, openChromium } from '../helper/chromium.ts';
import { type Installation, installation, type Serving } from '../helper/executable.ts';
import { openUpstream, reset } from '../helper/upstream.ts';

// What people do on the page, in a real browser, against the executable.

type Opened = {
  purser: Installation;
  serving: Serving;
  chromium: Chromium;
  account: string;
  upstream: Awaited<ReturnType<typeof openUpstream>>;
  /** Opens a wallet, and returns its id and token. */
  wallet(name: string, cents?: number): Promise<{ id: string; token: string }>;
  chat(token: string, key: string): Promise<number>;
};

async function open(
  t: TestContext,
  settings: Record<string, unknown> = {},
  ...others: string[]
): Promise<Opened | undefined> {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, settings, uncertain: { after_seconds: 3600, policy: 'charge' } });
  const serving = await purser.serve();
  const chromium = await openChromium(t, serving.url, ...others);
  if (!chromium) return undefined;
  const account = (await purser.operate('account.credit', { id: 'default', cents: 10_000 })).id;
  return {
    purser,
    serving,
    chromium,
    account,
    upstream,
    async wallet(name, cents = 500) {
      const made = await purser.operate('wallet.create', { account, name, budget_cents: cents });
      return { id: made.id, token: made.agent_token };
    },
    chat: async (token, key) =>
      (
        await serving.ask('POST', '/v1/chat/completions', {
          token,
          key,
          body: { model: 'flat', messages: [{ role: 'user', content: 'hi' }] },
        })
      ).status,
  };
}

/** Opens the page as the operator, as `purser ui` says. */
async function asOperator({ purser, chromium }: Opened, options: Parameters<Chromium['open']>[0] = {}) {
  const window = await chromium.open(options);
  await window.page.goto((await purser.operate('ui.link', {})).url);
  return window.page;
}

for (const javaScriptEnabled of [true, false])
  test(`an operator sees who spends most and stops that agent, ${javaScriptEnabled ? 'with' : 'without'} script`, async (t) => {
    const opened = await open(t);
    if (!opened) return;
    const { wallet, chat, chromium } = opened;
    const [small, large] = [await wallet('small spender'), await wallet('large spender')];
    await chat(small.token, 'a');
    for (const key of ['a', 'b', 'c']) await chat(large.token, key);
    const page = await asOperator(opened, { javaScriptEnabled });
    const first = page.getByRole('region', { name: 'Who spent in the last hour' }).getByRole('row').nth(1);
    assert.match(await first.innerText(), /large spender\s+flat\s+3\s+0\.030000000/);
    await first.getByRole('link', { name: 'Stop' }).click();
    await page.getByLabel('Why').fill('it loops');
    await page.getByRole('button', { name: 'Freeze the wallet' }).click();
    await page.getByText('The wallet is frozen. It spends nothing until you unfreeze it').waitFor();
    assert.match(await page.locator('main').innerText(), /it loops/);
    assert.equal(await chat(large.token, 'd'), 403);
    assert.equal(await chat(small.token, 'd'), 200);
    await page.getByRole('button', { name: 'Unfreeze' }).click();
    await page.getByText('may spend again').waitFor();
    assert.equal(await chat(large.token, 'e'), 200);
    assert.deepEqual(chromium.faults, []);
  });

test('an operator finds why the money of a wallet is gone', async (t) => {
  const opened = await open(t);
  if (!opened) return;
  const { wallet, chat, chromium } = opened;
  const { token } = await wallet('research', 100);
  for (const key of ['a', 'b']) await chat(token, key);
  const page = await asOperator(opened);
  await page.getByRole('link', { name: 'Wallets', exact: true }).first().click();
  await page.getByRole('link', { name: 'research' }).click();
  const rows = page.getByRole('region', { name: 'Movements of money' }).getByRole('row');
  assert.match(await rows.nth(1).innerText(), /charged\s+flat 10 \+ 5 tokens\s+−0\.010000000\s+0\.980000000/);
  assert.match(await rows.last().innerText(), /opened\s+\+1\.000000000\s+1\.000000000/);
  await page.getByRole('link', { name: 'With every hold and release' }).click();
  await rows.nth(4).waitFor();
  await rows.nth(1).getByRole('link').click();
  await page.getByText('Idempotency key').waitFor();
  assert.deepEqual(chromium.faults, []);
});

test('an operator sees what is stuck and since when, and resolves it', async (t) => {
  const opened = await open(t);
  if (!opened) return;
  const { wallet, chat, chromium, upstream, purser } = opened;
  const { id, token } = await wallet('unlucky');
  upstream.handle = reset;
  assert.equal(await chat(token, 'a'), 503);
  const page = await asOperator(opened);
  await page.getByText('1 operation with an unknown outcome').waitFor();
  await page.getByRole('link', { name: 'Resolve' }).click();
  await page.getByRole('link', { name: 'flat' }).click();
  await page.getByRole('link', { name: 'It did not happen: release it' }).click();
  await page.getByLabel('How you know').fill('its log has no such request');
  await page.getByRole('button', { name: 'Release $' }).click();
  await page.getByText('The operation is settled as you decided').waitFor();
  assert.equal((await purser.json('wallet', 'show', id)).held_usd, '0.00');
  const { operations } = await purser.json('operation', 'list', '--wallet', id);
  assert.deepEqual([operations[0].settled_by, operations[0].reason], ['operator', 'its log has no such request']);
  assert.deepEqual(chromium.faults, []);
});

test('an operator raises, extends and closes a wallet, and is asked before it is closed', async (t) => {
  const opened = await open(t);
  if (!opened) return;
  const { wallet, chromium, purser } = opened;
  const { id } = await wallet('ending');
  const page = await asOperator(opened);
  await page.goto(`${opened.serving.url}/wallets/${id}`);
  await page.getByLabel('Raise the budget by').fill('2.50');
  await page.getByRole('button', { name: 'Change the budget' }).click();
  await page.getByText('The budget was changed').waitFor();
  assert.equal((await purser.json('wallet', 'show', id)).budget_usd, '7.50');
  await page.getByText('Change it').click();
  await page.getByRole('link', { name: 'Close the wallet' }).click();
  assert.equal((await purser.json('wallet', 'show', id)).status, 'active');
  await page.getByRole('button', { name: 'Close the wallet' }).click();
  await page.getByText('The wallet is closed.').waitFor();
  assert.equal((await purser.json('wallet', 'show', id)).status, 'closed');
  assert.deepEqual(chromium.faults, []);
});

test('an operator verifies the journal', async (t) => {
  const opened = await open(t);
  if (!opened) return;
  await opened.wallet('any');
  const page = await asOperator(opened);
  await page.goto(`${opened.serving.url}/journal`);
  await page.getByRole('button', { name: 'Verify the whole journal' }).click();
  await page.getByText('entries were verified: the chain is whole').waitFor();
  assert.deepEqual(opened.chromium.faults, []);
});

test('figures move without reloading', async (t) => {
  const opened = await open(t);
  if (!opened) return;
  const { wallet, chat, chromium } = opened;
  const { id, token } = await wallet('moving');
  const page = await asOperator(opened);
  await page.goto(`${opened.serving.url}/wallets/${id}`);
  const spent = page.locator('[data-live=spent]');
  assert.equal(await spent.innerText(), '$0.00');
  await page.locator('#live', { hasText: 'live' }).waitFor();
  await chat(token, 'a');
  await page.locator('[data-live=spent]', { hasText: '$0.01' }).waitFor();
  assert.deepEqual(chromium.faults, []);
});

test('an account holder signs in with a key, makes a wallet, and its agent spends', async (t) => {
  const opened = await open(t);
  if (!opened) return;
  const { purser, serving, chromium, account, chat } = opened;
  const { key } = await purser.json('key', 'create', '--account', account, '--name', 'person');
  const { page, context } = await chromium.open();
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: serving.url });
  await page.goto(serving.url);
  await page.getByLabel('Account key').fill(key);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await page.getByRole('link', { name: 'New wallet' }).click();
  await page.getByLabel('Name').fill('my agent');
  await page.getByLabel('Budget in dollars').fill('3');
  await page.clock.install();
  await page.getByRole('button', { name: 'Make the wallet' }).click();
  const [copyToken, copyEnvironment] = ['the token', 'the environment'].map((it) =>
    page.getByRole('button', { name: `Copy ${it}` }),
  ) as [Locator, Locator];
  await copyToken.click();
  await copyToken.and(page.getByText('Copied')).waitFor();
  const token = (await page.evaluate('navigator.clipboard.readText()')) as string;
  await page.clock.fastForward(60_000);
  assert.equal(await copyToken.innerText(), 'Copied', 'a browser that draws late still shows it');
  await copyEnvironment.click();
  await copyEnvironment.and(page.getByText('Copied')).waitFor();
  assert.equal(await copyToken.innerText(), 'Copy');
  assert.match(token, /^svc_agent_\w{49}$/);
  assert.equal(await chat(token, 'a'), 200);
  await page.getByRole('link', { name: 'Go to the wallet' }).click();
  await page.getByText('$0.01').first().waitFor();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByText('You are signed out').waitFor();
  await page.goto(`${serving.url}/wallets`);
  await page.getByRole('heading', { name: 'Sign in to Purser' }).waitFor();
  assert.deepEqual(chromium.faults, []);
});

test('a person signs in at the identity provider', async (t) => {
  const issuer = await openOidcIssuer(t);
  const opened = await open(t, { identity: { issuer: issuer.url, audience: 'purser', ...PAGE_CLIENT } }, issuer.url);
  if (!opened) return;
  const { serving, chromium } = opened;
  issuer.register(`${serving.url}/sign-in/callback`);
  const { page } = await chromium.open();
  await page.goto(serving.url);
  await page.getByRole('link', { name: 'Sign in with your identity provider' }).click();
  await page.locator('input[name=login]').fill('alice');
  await page.locator('input[name=password]').fill('any');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await page.getByRole('button', { name: 'Continue' }).click();
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await page.getByRole('link', { name: 'Keys' }).click();
  await page.getByLabel('Name').fill('ci');
  await page.getByRole('button', { name: 'Make a key' }).click();
  await page.getByText('cnv_live_').first().waitFor();
});

test('the keyboard reaches the content, the menu and every button, and shows where it is', async (t) => {
  const opened = await open(t);
  if (!opened) return;
  await opened.wallet('keyed');
  const page = await asOperator(opened);
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate('document.activeElement.textContent'), 'Skip to the content');
  await page.keyboard.press('Enter');
  await page.locator('#main:focus').waitFor();
  const seen = new Set<string>();
  for (let i = 0; i < 60; i++) {
    await page.keyboard.press('Tab');
    const [text, outline] = (await page.evaluate(
      `[document.activeElement === document.body ? '' : document.activeElement.innerText || document.activeElement.ariaLabel || '',
        getComputedStyle(document.activeElement).outlineStyle]`,
    )) as [string, string];
    if (text) assert.notEqual(outline, 'none', `${text} does not show that it has the focus`);
    seen.add(text);
  }
  for (const name of ['Sign out', 'Wallets', 'Settings']) assert.ok(seen.has(name), name);
});

test('another site can neither frame the page nor send its forms', async (t) => {
  const elsewhere = http.createServer((_, response) => response.setHeader('content-type', 'text/html').end(html));
  await new Promise<void>((resolve) => elsewhere.listen(0, '127.0.0.1', resolve));
  t.after(() => elsewhere.close());
  const { port } = elsewhere.address() as AddressInfo;
  const opened = await open(t, {}, `http://localhost:${port}`);
  if (!opened) return;
  const { id } = await opened.wallet('prey');
  const target = opened.serving.url;
  const html = `<iframe src="${target}/"></iframe><form method="post" action="${target}/wallets/${id}/close"><button>win a prize</button></form>`;
  const page = await asOperator(opened);
  await page.goto(`http://localhost:${port}/`);
  const framed = page.frames().find((it) => it !== page.mainFrame());
  assert.ok(!(await framed?.content())?.includes('Open wallets'));
  await page.getByRole('button', { name: 'win a prize' }).click();
  await page.waitForURL(/close$/);
  assert.ok(!(await page.content()).includes('is closed'));
  assert.equal((await opened.purser.json('wallet', 'show', id)).status, 'active');
});
