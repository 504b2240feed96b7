import http from 'node:http';
import net from 'node:net';
import { json } from 'node:stream/consumers';
import type { Installation, Serving } from '../helper/executable.ts';
import type { Answer } from '../helper/server.ts';

export const chatBody = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };

export const chat = (server: Serving, token: string, key: string) =>
  server.ask('POST', '/v1/chat/completions', { token, key, body: chatBody });

export async function walletOf(purser: Installation): Promise<{ id: string; token: string }> {
  await purser.operate('account.credit', { id: 'default', cents: 100_000 });
  const create = { account: 'default', name: 'agent', budget_cents: 50_000 };
  const { id, agent_token: token } = await purser.operate('wallet.create', create);
  return { id, token };
}

/** A chat that the server has begun to read for certain: it said `100 Continue`. */
export function accepted(
  server: Serving,
  token: string,
  key: string,
): Promise<{ answer: Promise<Omit<Answer, 'text'>> }> {
  const answer = Promise.withResolvers<Omit<Answer, 'text'>>();
  const begun = Promise.withResolvers<{ answer: Promise<Omit<Answer, 'text'>> }>();
  const headers = {
    'content-type': 'application/json',
    authorization: `Bearer ${token}`,
    'idempotency-key': key,
    expect: '100-continue',
  };
  const request = http.request(`${server.url}/v1/chat/completions`, { method: 'POST', headers }, async (response) => {
    answer.resolve({ status: response.statusCode ?? 0, headers: response.headers, body: await json(response) });
  });
  request.once('error', answer.reject);
  request.once('continue', () => {
    request.end(JSON.stringify(chatBody));
    begun.resolve({ answer: answer.promise });
  });
  request.flushHeaders();
  return begun.promise;
}

/** Resolves when a new connection is refused. */
export async function refusing(server: Serving): Promise<void> {
  const { hostname, port } = new URL(server.url);
  for (;;) {
    const isOpen = await new Promise<boolean>((resolve) => {
      const socket = net.connect(Number(port), hostname);
      socket.once('connect', () => resolve(true)).once('error', () => resolve(false));
      socket.once('connect', () => socket.destroy());
    });
    if (!isOpen) return;
  }
}
