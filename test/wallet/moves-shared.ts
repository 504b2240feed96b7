import type { TestServer } from '../helper/server.ts';

// Budget that moves while a wallet is open: raise, lower, extend, freeze, refill and delegate (design, section 13).

/** Posts with the key of the account. */
export const post = (purser: TestServer, path: string, body: object, key?: string) =>
  purser.ask('POST', path, { token: purser.accountKey, body, ...(key === undefined ? {} : { key }) });
/** Returns a wallet as its account sees it. */
export const recordOf = async (purser: TestServer, id: string) =>
  (await purser.ask('GET', `/v1/wallets/${id}`, { token: purser.accountKey })).body;
