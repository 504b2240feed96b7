import type { LoadOrder } from './generate.ts';

export const KEY_LENGTH = 32;

/** A request of an order: its bytes before its key and after it. The key has `KEY_LENGTH` characters. */
export type Request = { beforeKey: string; afterKey: string };

/** Returns the request of an order with one of its tokens. */
export function requestOf(order: LoadOrder, token: string | undefined): Request {
  const headers = [
    `POST ${order.path} HTTP/1.1`,
    `Host: 127.0.0.1:${order.port}`,
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(order.body)}`,
    ...(token === undefined ? [] : [`Authorization: Bearer ${token}`]),
    ...Object.entries(order.headers ?? {}).map(([name, value]) => `${name}: ${value}`),
    `${order.isKeyless ? 'X-Unused' : 'Idempotency-Key'}: `,
  ];
  return { beforeKey: headers.join('\r\n'), afterKey: `\r\n\r\n${order.body}` };
}

/** Returns the key of the request of this number. */
export const keyOf = ({ run }: LoadOrder, number: number): string => `${run}${number}`.padEnd(KEY_LENGTH, '-');
