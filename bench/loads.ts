import type { Load } from './generate.ts';
import type { Installation, Purser } from './purser.ts';

export const CONNECTIONS = 64;
const CHAT = {
  messages: [
    { role: 'system', content: 'You are a helpful assistant. Answer in one sentence.' },
    { role: 'user', content: 'What is the capital of France, and on which river does it lie?' },
  ],
  max_tokens: 100,
};

/** Returns the body of a chat completion. It is the same for every target. */
export const chatBody = (model = 'mock-1') => JSON.stringify({ model, ...CHAT });

export const chatLoad = ({ child, port }: Purser, tokens: readonly string[], connections = CONNECTIONS): Load => ({
  pid: child.pid,
  port,
  path: '/v1/chat/completions',
  body: chatBody(),
  connections,
  tokens,
});

export const walletLoad = ({ child, port }: Purser, { accountKey }: Installation): Load => ({
  pid: child.pid,
  port,
  path: '/v1/wallets',
  body: JSON.stringify({ name: 'bench', budget_cents: 100, expires_in_seconds: 86_400 }),
  connections: CONNECTIONS,
  tokens: [accountKey],
});
