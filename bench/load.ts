// The load generator for what wrk does not send (bench/wrk.ts), a separate process: raw sockets, one request in flight on each, as few
// allocations per request as possible. It reads its order as JSON on stdin and prints its result as JSON.

import { once } from 'node:events';
import net from 'node:net';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import type { LoadOrder, LoadResult } from './generate.ts';
import { type Reply, replyReader } from './reply.ts';
import { KEY_LENGTH, keyOf, requestOf } from './request.ts';

const order = JSON.parse(await stdin()) as LoadOrder;
const latencies: number[] = [];
const firstBytes: number[] = [];
const gaps: number[] = [];
const FIRST_EVENT = 'data: ';
const isStream = order.body.includes('"stream":true');
const statuses: Record<string, number> = {};
let errors = 0;
let asked = 0;
let endsAt = Number.POSITIVE_INFINITY;
let lastRefusal: string | undefined;

/** The bytes of a request with one of the tokens, and the position of its key. */
type Template = { bytes: Buffer; keyAt: number };

function template(token: string | undefined): Template {
  const { beforeKey, afterKey } = requestOf(order, token);
  return { bytes: Buffer.from(`${beforeKey}${keyOf(order, 0)}${afterKey}`), keyAt: beforeKey.length };
}

type Client = {
  send(template: Template, key: number): Promise<Reply | undefined>;
  /** Returns when the first byte of the last answer came. */
  firstByteAt(): number;
};

async function connect(): Promise<Client> {
  const reader = replyReader();
  let firstByteAt: number | undefined;
  let lastAt: number | undefined;
  let answered: ((reply: Reply | undefined) => void) | undefined;
  const settle = (reply: Reply | undefined) => {
    const tell = answered;
    answered = undefined;
    tell?.(reply);
  };
  const socket = net.connect({
    port: order.port,
    host: '127.0.0.1',
    noDelay: true,
    onread: {
      buffer: Buffer.allocUnsafe(64 * 1024),
      callback(length, buffer) {
        const bytes = (buffer as Buffer).subarray(0, length);
        const now = performance.now();
        if (lastAt !== undefined) gaps.push(now - lastAt);
        if (firstByteAt !== undefined) lastAt = now;
        else if (!isStream || bytes.includes(FIRST_EVENT)) firstByteAt = lastAt = now;
        const reply = reader(bytes);
        if (reply) settle(reply);
        return true;
      },
    },
  });
  socket.on('error', () => settle(undefined));
  socket.on('close', () => settle(undefined));
  await once(socket, 'connect');
  socket.unref(); // The process ends after the last answer.
  return {
    firstByteAt: () => firstByteAt as number,
    send({ bytes, keyAt }, key) {
      firstByteAt = lastAt = undefined;
      bytes.write(keyOf(order, key), keyAt, KEY_LENGTH, 'latin1');
      return new Promise((resolve) => {
        answered = resolve;
        if (socket.destroyed) settle(undefined);
        else socket.write(bytes);
      });
    },
  };
}

async function ask(client: Client, from: Template, key: number): Promise<boolean> {
  const at = performance.now();
  const reply = await client.send(from, key);
  if (!reply) {
    errors++;
    return false;
  }
  latencies.push(performance.now() - at);
  firstBytes.push(client.firstByteAt() - at);
  statuses[reply.status] = (statuses[reply.status] ?? 0) + 1;
  if (reply.status >= 400) lastRefusal = reply.text;
  return true;
}

/** Sends requests on one connection until the time is over or the number of requests is reached. */
async function stream(client: Client, index: number): Promise<void> {
  const tokens = order.tokens ?? [undefined];
  const own = tokens.filter((_, i) => i % order.connections === index % tokens.length).map(template);
  if (order.spreadMilliseconds) await sleep((order.spreadMilliseconds * index) / order.connections);
  for (let turn = 0; performance.now() < endsAt && asked < (order.count ?? Number.POSITIVE_INFINITY); turn++) {
    const from = own[turn % own.length] as Template;
    if (!(await ask(client, from, asked++))) return;
  }
}

/** Sends on all connections at the same moment, `count` times. With `sameKey` they all send the same request. */
async function lockstep(clients: readonly Client[]): Promise<void> {
  const own = clients.map((_, i) => template(order.tokens?.[i % order.tokens.length]));
  for (let round = 0; round < (order.count ?? 1); round++) {
    const numberOf = (i: number) => (order.sameKey ? round : round * clients.length + i);
    await Promise.all(clients.map((client, i) => ask(client, own[i] as Template, numberOf(i))));
  }
}

async function stdin(): Promise<string> {
  let text = '';
  for await (const chunk of process.stdin) text += chunk;
  return text;
}

const keepAlive = setInterval(() => {}, 1000); // The sockets are unreferenced.
const clients = await Promise.all(Array.from({ length: order.connections }, connect));
const from = performance.now();
endsAt = order.seconds === undefined ? endsAt : from + order.seconds * 1000;
await (order.lockstep ? lockstep(clients) : Promise.all(clients.map(stream)));
const seconds = (performance.now() - from) / 1000;
clearInterval(keepAlive);
const sorted = Float64Array.from(latencies).sort();
const sortedGaps = Float64Array.from(gaps).sort();
const share = (of: Float64Array, part: number) =>
  of[Math.min(of.length - 1, Math.floor(of.length * part))] ?? Number.NaN;
const result: LoadResult = {
  count: sorted.length,
  perSecond: sorted.length / seconds,
  p50: share(sorted, 0.5),
  p99: share(sorted, 0.99),
  firstByte: share(Float64Array.from(firstBytes).sort(), 0.5),
  ...(gaps.length ? { gap50: share(sortedGaps, 0.5), gap99: share(sortedGaps, 0.99) } : {}),
  statuses,
  errors,
  ...(lastRefusal === undefined ? {} : { lastRefusal }),
};
console.log(JSON.stringify(result));
process.exit(0);
