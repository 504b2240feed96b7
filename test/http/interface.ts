/**
 * The endpoints of the interface, section 4, copied by hand from its tables, in its order. Never derived from src: it
 * would be compared with itself.
 */
export type Line = {
  method: 'GET' | 'POST' | 'DELETE';
  path: string;
  auth: 'Account' | 'Session' | 'Wallet';
  /** The status of success. */
  status: 200 | 201;
  /** Whether the header Idempotency-Key is required. */
  key: boolean;
  /** A body that every rule of the interface allows, where the endpoint takes one. */
  body?: Record<string, unknown>;
};

const ID = 'res_01k9v3c2mq8r5t7w1x4z6b0d2f'; // no such resource
const id = { id: ID };
const wallet = { name: 'agent', budget_cents: 100 };
const checkout = { amount_cents: 500 };
const create = { provider: 'provider_one', spec: { cpus: 1, memory_gib: 1, max_seconds: 60 } };
const extend = { id: ID, additional_seconds: 60 };
const exec = { id: ID, command: 'true' };
const upload = { id: ID, path: '/a', content_base64: 'YQ==' };
const sign = { object: 'a', operation: 'get' };
const chat = { model: 'free', messages: [{ role: 'user', content: 'hi' }], max_tokens: 1, stream: false };

// biome-ignore format: a table is read by its columns
export const INTERFACE: readonly Line[] = [
  { method: 'GET', path: '/v1/account', auth: 'Account', status: 200, key: false },
  { method: 'GET', path: '/v1/keys', auth: 'Account', status: 200, key: false },
  { method: 'POST', path: '/v1/keys', auth: 'Session', status: 201, key: false, body: { name: 'ci' } },
  { method: 'DELETE', path: '/v1/keys/{id}', auth: 'Session', status: 200, key: false },
  { method: 'GET', path: '/v1/wallets', auth: 'Account', status: 200, key: false },
  { method: 'POST', path: '/v1/wallets', auth: 'Account', status: 201, key: true, body: wallet },
  { method: 'GET', path: '/v1/wallets/{id}', auth: 'Account', status: 200, key: false },
  { method: 'GET', path: '/v1/resources', auth: 'Account', status: 200, key: false },
  { method: 'GET', path: '/v1/wallets/{id}/token', auth: 'Account', status: 200, key: false },
  { method: 'POST', path: '/v1/wallets/{id}/close', auth: 'Account', status: 200, key: false },
  { method: 'GET', path: '/v1/wallets/{id}/resources', auth: 'Account', status: 200, key: false },
  { method: 'POST', path: '/v1/billing/checkout', auth: 'Session', status: 200, key: true, body: checkout },

  { method: 'GET', path: '/v1/budget', auth: 'Wallet', status: 200, key: false },
  { method: 'GET', path: '/v1/compute/offers', auth: 'Wallet', status: 200, key: false },
  { method: 'GET', path: '/v1/compute/list', auth: 'Wallet', status: 200, key: false },
  { method: 'GET', path: '/v1/models', auth: 'Wallet', status: 200, key: false },
  { method: 'POST', path: '/v1/compute/create', auth: 'Wallet', status: 200, key: true, body: create },
  { method: 'POST', path: '/v1/compute/extend', auth: 'Wallet', status: 200, key: true, body: extend },
  { method: 'POST', path: '/v1/run/close', auth: 'Wallet', status: 200, key: false },
  { method: 'POST', path: '/v1/compute/stop', auth: 'Wallet', status: 200, key: false, body: id },
  { method: 'POST', path: '/v1/compute/ssh', auth: 'Wallet', status: 200, key: false, body: id },
  { method: 'POST', path: '/v1/compute/status', auth: 'Wallet', status: 200, key: false, body: id },
  { method: 'POST', path: '/v1/compute/exec', auth: 'Wallet', status: 200, key: false, body: exec },
  { method: 'POST', path: '/v1/compute/upload', auth: 'Wallet', status: 200, key: false, body: upload },
  { method: 'POST', path: '/v1/transfer/sign', auth: 'Wallet', status: 200, key: false, body: sign },
  { method: 'POST', path: '/v1/router/key', auth: 'Wallet', status: 200, key: false, body: {} },
  { method: 'POST', path: '/v1/chat/completions', auth: 'Wallet', status: 200, key: true, body: chat },
];

/** Endpoints that take a body. */
export const WITH_BODY = INTERFACE.filter(
  (line): line is Line & { body: Record<string, unknown> } => line.body !== undefined,
);

/** The largest body of an endpoint, in bytes (design 2.20). */
export function bodyBytesMax(path: string): number {
  if (path === '/v1/chat/completions') return 8 * 1024 * 1024;
  return path === '/v1/compute/upload' ? 12 * 1024 * 1024 : 64 * 1024;
}
