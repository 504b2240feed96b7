import type { TestContext } from 'node:test';
import { type Installation, type InstallationOptions, installation, type Serving } from '../helper/executable.ts';
import { MODELS } from '../helper/server.ts';
import { DONE, openStream, type Stream } from '../helper/sse.ts';
import { type FakeUpstream, openUpstream } from '../helper/upstream.ts';

export const CHARGE = 120_000n; // What completionStream() costs with the model `chat`.

export type Streaming = {
  upstream: FakeUpstream;
  purser: Installation;
  server: Serving;
  wallet: { id: string; token: string; key: string };
  stream(body?: object, key?: string): Promise<Stream>;
};

/** A server with a wallet of USD 10,000 and its gateway key. */
export async function serveStreams(
  t: TestContext,
  options: Pick<InstallationOptions, 'uncertain' | 'settings'> = {},
): Promise<Streaming> {
  const upstream = await openUpstream(t);
  const { uncertain = { after_seconds: 900, policy: 'charge' }, settings } = options;
  // On a machine that does much else a thousand streams take their time.
  const upstreams = [{ name: 'local', base_url: upstream.url, timeout_seconds: 600 }];
  const purser = installation(t, { settings: { router: { upstreams, models: MODELS, uncertain }, ...settings } });
  const server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 1_000_000 });
  const create = { account: 'default', name: 'agent', budget_cents: 1_000_000 };
  const { id, agent_token: token } = await purser.operate('wallet.create', create);
  const { body } = await server.ask('POST', '/v1/router/key', { token, body: {} });
  const wallet = { id, token, key: body.api_key };
  const stream = (more: object = {}, key?: string) =>
    openStream(server.url, wallet.key, more, key === undefined ? {} : { key });
  return { upstream, purser, server, wallet, stream };
}

/** What became of a stream, as its client saw it. */
export async function read(stream: Promise<Stream>): Promise<'whole' | 'told' | 'cut'> {
  try {
    const text = await (await stream).rest();
    if (text.endsWith(DONE)) return 'whole';
    return text.includes('operation_uncertain') ? 'told' : 'cut';
  } catch {
    return 'cut';
  }
}
