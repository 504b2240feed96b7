import type { VastAnswer, VastApi } from './api.ts';
import { idOf } from './offers.ts';

/** Creates the calls about the account of a key, which is another's with another key: none of its machines are shown to that. */
export function createAccount(api: VastApi, baseUrl: string) {
  const read = (): Promise<VastAnswer> => api.read('account', 'GET', '/api/v0/users/current');
  let known: Promise<string> | undefined;
  async function ask(): Promise<string> {
    const { status, json, words } = await read();
    const isTold = status === 200 && typeof json === 'object' && json !== null;
    if (!isTold && status !== 403) throw new Error(`vast does not tell whose key this is: ${words}`);
    const id = isTold ? idOf((json as { id?: unknown }).id) : undefined;
    return id === undefined ? `account at ${baseUrl}` : `account ${id} at ${baseUrl}`;
  }
  return {
    read,
    /**
     * Returns the identity of the account (`Backend.identity`), which is asked for once, also by several at the same time: that of a
     * key does not change. A key that may not read its account (user_read) is told apart from those that may, and from no other.
     */
    identity(): Promise<string> {
      known ??= ask().catch((error) => {
        known = undefined;
        throw error;
      });
      return known;
    },
  };
}
