import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import type { TestContext } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { Agent } from 'undici';
import { hasComponent } from '../helper/component.ts';
import { ask, EXECUTABLE, type Installation, installation, type Serving } from '../helper/executable.ts';
import { completion, type FakeUpstream, openUpstream } from '../helper/upstream.ts';

const MIB = 1024 * 1024;
/** Where the honest client calls from; nobody attacks from there. */
const HONEST_ADDRESS = '127.0.1.1';
const HONEST_COUNT = 4;
/** What the attacker's own process needs. */
const OWN_FILE_COUNT = 4096;
const WARM_COUNT = 200;
const BUDGET_CENTS = 500_000;

export type Raw = { socket: net.Socket; text: string; closed: Promise<void>; isClosed: boolean };
export type Attacked = {
  purser: Installation;
  server: Serving;
  upstream: FakeUpstream;
  /** A wallet token that the attacker holds. */
  stolen: string;
  /** One more wallet's token. */
  wallet(): Promise<string>;
  /** A connection from a loopback address. What breaks off is nobody's error; `text` has what was said on it. */
  connect(address?: string): Promise<Raw>;
  /** Resolves when the server has accepted every connection so far: they come in their order. */
  accepted(): Promise<void>;
  /**
   * Resolves when the honest client was served so many times more. It asks without a pause, or with a pause of so many
   * milliseconds before each request for as long as this is waited for.
   */
  served(more: number, pauseMilliseconds?: number): Promise<void>;
  /** Bytes of memory that the server has resident now. */
  resident(): number;
  openFiles(): number;
};
type Options = {
  openFiles?: number;
  growthMib: number;
  settings?: Record<string, unknown>;
  /** `installation` has the default. */
  upstreamSeconds?: number;
};

/** What the honest client asks, again and again: an upstream may tell it from an attacker. */
const HONEST = 'an honest question';
const chatBody = { model: 'chat', messages: [{ role: 'user', content: HONEST }], max_tokens: 100 };

/**
 * A server that may have `openFiles` descriptors, an upstream that answers at once, and an honest client that pays for chat
 * requests all the time that `attack` runs: every one of them has to be answered, and the memory may grow by
 * `growthMib` at most. `attack` answers what there is to say about it. Afterwards the server ends well, and its books agree.
 */
export async function underAttack(
  t: TestContext,
  { openFiles = 4096, growthMib, settings = {}, ...limits }: Options,
  attack: (it: Attacked) => Promise<string>,
): Promise<void> {
  if (!hasComponent(t, 'prlimit', () => allowFiles('self', Math.max(openFiles, OWN_FILE_COUNT)))) return;
  const upstream = await openUpstream(t);
  const command = ['prlimit', `--nofile=${openFiles}:${openFiles}`, EXECUTABLE];
  const purser = installation(t, { upstream, command, settings, ...limits });
  const server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 100_000_000 });
  const wallet = async () => {
    const order = { account: 'default', name: 'agent', budget_cents: BUDGET_CENTS };
    return (await purser.operate('wallet.create', order)).agent_token;
  };
  const stolen = await wallet();
  const honest = honestClient(server, await wallet());
  const fresh = new Agent({ pipelining: 0 });
  const sockets = new Set<net.Socket>();
  t.after(async () => {
    for (const it of sockets) it.destroy();
    await honest.stop().catch(() => {}); // The test has heard of it.
    await fresh.destroy();
  });

  await honest.paid(WARM_COUNT);
  const memory = (name: string) => {
    const status = readFileSync(`/proc/${server.pid}/status`, 'utf8');
    return Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(status)?.[1]) * 1024;
  };
  const before = memory('VmRSS');
  writeFileSync(`/proc/${server.pid}/clear_refs`, '5'); // VmHWM, the peak, begins anew (proc(5)).
  const said = await attack({
    purser,
    server,
    upstream,
    stolen,
    wallet,
    served: honest.paid,
    accepted: async () => void assert.equal((await ask(fresh, server.url, 'GET', '/healthz')).status, 200),
    resident: () => memory('VmRSS'),
    openFiles: () => readdirSync(`/proc/${server.pid}/fd`).length,
    connect: (address = '127.0.0.2') => connectTo(server.url, address, sockets),
  });
  const served = await honest.stop();
  const peak = memory('VmHWM');
  const mib = (bytes: number) => `${Math.round(bytes / MIB)} MiB`;
  t.diagnostic(`${said}; ${served} honest requests served; ${mib(before)} resident before, at most ${mib(peak)}`);
  assert(peak - before < growthMib * MIB, `${mib(before)}, then ${mib(peak)}`);
  assert.equal((await server.ask('GET', '/readyz')).status, 200);
  for (const it of sockets) it.destroy();
  assert.deepEqual(await server.stop(), { code: 0, signal: null }, server.output.stderr.slice(-2000));
  assert((await purser.json('ledger', 'verify')).ok);
}

/** Lets a process have so many open files. False where this machine does not allow that. */
export function allowFiles(pid: number | 'self', count: number): boolean {
  const args = ['--pid', String(pid === 'self' ? process.pid : pid), `--nofile=${count}:`];
  try {
    execFileSync('prlimit', args, { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

async function connectTo(url: string, localAddress: string, sockets: Set<net.Socket>): Promise<Raw> {
  const { hostname, port } = new URL(url);
  const socket = net.connect({ host: hostname, port: Number(port), localAddress });
  sockets.add(socket);
  const closed = Promise.withResolvers<void>();
  const raw: Raw = { socket, text: '', closed: closed.promise, isClosed: false };
  socket.setEncoding('utf8').on('data', (text: string) => {
    raw.text += text;
  });
  socket.on('error', () => {}); // It closes.
  socket.once('close', () => {
    raw.isClosed = true;
    sockets.delete(socket);
    closed.resolve();
  });
  await Promise.race([new Promise((resolve) => socket.once('connect', resolve)), closed.promise]);
  return raw;
}

/** Pays for one request after the other, a few at a time, on connections of its own. */
function honestClient(server: Serving, token: string) {
  const agent = new Agent({ localAddress: HONEST_ADDRESS });
  let count = 0;
  let isOver = false;
  let pause = 0;
  const waiting = new Set<() => void>();
  async function work() {
    while (!isOver) {
      if (pause) await setTimeout(pause);
      const asked = { token, key: randomUUID(), body: chatBody };
      const answer = await ask(agent, server.url, 'POST', '/v1/chat/completions', asked);
      assert.equal(answer.status, 200, answer.text);
      count++;
      for (const check of [...waiting]) check();
    }
  }
  const workers = Promise.all(Array.from({ length: HONEST_COUNT }, work));
  workers.catch(() => {}); // Whoever waits hears of it.
  return {
    async paid(more: number, pauseMilliseconds = 0): Promise<void> {
      pause = pauseMilliseconds;
      const enough = count + more;
      const served = Promise.withResolvers<void>();
      const check = () => {
        if (count >= enough) served.resolve();
      };
      waiting.add(check);
      await Promise.race([served.promise, workers]).finally(() => {
        waiting.delete(check);
        pause = 0;
      });
    },
    /** Answers how many were served. Rejects with the first that was not. */
    async stop(): Promise<number> {
      isOver = true;
      await workers.finally(() => agent.destroy());
      return count;
    },
  };
}

/** Answers honest requests, and hands all others to `handler`. */
export function exceptHonest(handler: FakeUpstream['handle']): FakeUpstream['handle'] {
  return (call, response) => {
    const { messages } = call.body as { messages?: { content: string }[] };
    return (messages?.[0]?.content === HONEST ? completion() : handler)(call, response);
  };
}

/** One whole request as it goes over the wire. */
export function requestText(path: string, token: string, body: string, headers: Record<string, string> = {}): string {
  const all = {
    host: 'purser',
    authorization: `Bearer ${token}`,
    'content-type': 'application/json',
    'content-length': String(Buffer.byteLength(body)),
    ...headers,
  };
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  return `POST ${path} HTTP/1.1\r\n${lines.join('')}\r\n${body}`;
}
