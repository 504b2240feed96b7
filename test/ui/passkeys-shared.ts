import assert from 'node:assert/strict';
import type { TestServer } from '../helper/server.ts';
import type { Authenticator, Twist } from './authenticator.ts';
import { type Browser, openBrowser } from './sample.ts';

export const OPTIONS = '/sign-in/passkey/options';

/** The page as a browser on this machine reaches it by name. */
export const here = (purser: TestServer) => purser.url.replace('127.0.0.1', 'localhost');
export const at = (purser: TestServer) => openBrowser({ url: here(purser) });

export async function byLink(purser: TestServer): Promise<Browser> {
  const browser = at(purser);
  const { url } = await purser.run('ui.link', {});
  await browser.get(new URL(url).pathname);
  return browser;
}

/** Makes a passkey in a signed-in browser; returns the status and page of the form. */
export async function make(browser: Browser, authenticator: Authenticator, twist: Twist = {}, name = 'laptop') {
  const asked = await browser.post('/settings/passkeys/options');
  assert.equal(asked.status, 200, asked.html);
  const credential = authenticator.make(JSON.parse(asked.html), twist);
  return browser.post('/settings/passkeys', { name, credential });
}

/** Signs in with a passkey; returns the status and page. */
export async function signIn(browser: Browser, authenticator: Authenticator, twist: Twist = {}) {
  const asked = await browser.post(OPTIONS);
  assert.equal(asked.status, 200, asked.html);
  return browser.post('/sign-in/passkey', { credential: authenticator.answer(JSON.parse(asked.html), twist) });
}
