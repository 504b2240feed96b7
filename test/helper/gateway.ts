import assert from 'node:assert/strict';
import type { Answer, Asked, TestServer } from './server.ts';
import { openStream, type Stream, withoutCost } from './sse.ts';

/** Longer than any operation here takes on a busy machine. */
const QUIET_SECONDS = 20;

/** A wallet with a gateway key, and a client that uses it. */
export type Gateway = {
  walletId: string;
  /** The wallet's own token. */
  token: string;
  key: string;
  /** POST chat/completions under the gateway's base URL. */
  chat(body?: object, idempotencyKey?: string): Promise<Answer>;
  /** The same, streamed and read completely, without the comment that contains the cost. */
  streamed(body?: object, idempotencyKey?: string): Promise<Answer>;
  /** The same, streamed; the test reads it. */
  stream(body?: object, idempotencyKey?: string): Promise<Stream>;
  ask(method: string, path: string, asked?: Asked): Promise<Answer>;
  /** Resolves when no operation of the wallet is in flight. */
  quiet(): Promise<void>;
};

export async function openGateway(
  server: TestServer,
  { options = {}, wallet = {} }: { options?: object; wallet?: Record<string, unknown> } = {},
): Promise<Gateway> {
  const { id: walletId, token } = await server.openWallet(wallet);
  const answer = await server.ask('POST', '/v1/router/key', { token, body: options });
  assert.equal(answer.status, 200, answer.text);
  const key = answer.body.api_key;
  const chatBody = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };
  const post = (body: object, idempotencyKey?: string) =>
    server.ask('POST', '/v1/router/chat/completions', {
      token: key,
      key: idempotencyKey,
      body: { ...chatBody, ...body },
    });
  return {
    walletId,
    token,
    key,
    chat: (body = {}, idempotencyKey) => post(body, idempotencyKey),
    async streamed(body = {}, idempotencyKey) {
      const answer = await post({ stream: true, ...body }, idempotencyKey);
      return answer.status === 200 ? { ...answer, text: withoutCost(answer.text) } : answer;
    },
    stream: (body = {}, idempotencyKey) =>
      openStream(server.url, key, body, idempotencyKey === undefined ? {} : { key: idempotencyKey }),
    ask: (method, path, asked = {}) => server.ask(method, `/v1/router${path}`, { token: key, ...asked }),
    quiet: () => server.app.inFlight.whenWalletIdle(walletId, QUIET_SECONDS),
  };
}
