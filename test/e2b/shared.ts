import type { TestContext } from 'node:test';
import type { Asked, TestServerOptions } from '../helper/server.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';

/** The templates of the tests: one that cannot be extended, and one that can. */
export const TEMPLATES = {
  base: { provider: 'provider_three', spec: { offer_id: 'small', disk_gb: 5 } },
  fixed: { provider: 'provider_one', spec: { cpus: 0.5, memory_gib: 0.25 } },
};
/** What 300 s of `base` cost. */
export const PRICE = '0.03';

export type Sandbox = { sandboxID: string; envdAccessToken: string; trafficAccessToken: string; domain: string };

/** A server that E2B's SDKs can use, whose machines are in memory, and a wallet. */
export async function openE2b(
  t: TestContext,
  options: TestServerOptions & { templates?: object; wallet?: Record<string, unknown> } = {},
) {
  const { templates, wallet: terms, settings, ...more } = options;
  const compute = { templates: { ...TEMPLATES, ...templates }, ...(settings?.compute as object) };
  const purser = await openMemoryServer(t, { ...more, settings: { ...settings, compute } });
  const wallet = await purser.openWallet({ ...LONG, ...terms });
  /** A request to the API, with its key as the SDKs send it. */
  const api = (method: string, path: string, asked: Asked & { as?: string } = {}) => {
    const { as = wallet.token, headers, ...rest } = asked;
    return purser.ask(method, `/v1/e2b${path}`, { ...rest, headers: { 'x-api-key': as, ...headers } });
  };
  const create = (body: object = {}, asked: Asked & { as?: string } = {}) =>
    api('POST', '/v2/sandboxes', { body: { templateID: 'base', ...body }, ...asked });
  return { purser, wallet, api, create };
}
