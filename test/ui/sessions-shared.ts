import assert from 'node:assert/strict';
import type { TestServer } from '../helper/server.ts';
import type { Browser } from './sample.ts';

/** What a browser sends with a page that somebody opens. */
export const BROWSER_ACCEPT = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8';

/** Returns how many sessions of browsers the books have. */
export const rows = (purser: TestServer) =>
  Number(purser.app.ledger.client.prepare('select count(*) from browser_session').pluck().get());

/** Says whether a browser is signed in. */
export async function isIn(browser: Browser): Promise<boolean> {
  const { status, headers } = await browser.get('/wallets');
  if (status === 303) assert.match(headers.location as string, /^\/sign-in/);
  return status === 200;
}
