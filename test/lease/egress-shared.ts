import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import type { TestContext } from 'node:test';
import type { LineSession } from '../../src/egress/line.ts';
import { systemOutside } from '../../src/egress/outside.ts';
import { WATCHDOG } from '../compute/engines/host-session.ts';
import { openSite, PUBLIC } from '../egress/proxy-shared.ts';
import { freePort } from '../helper/free-port.ts';
import type { TestServerOptions } from '../helper/server.ts';

/** What the operator lets leases reach. */
export const OPERATORS = ['a.test', '*.b.test', '10.0.0.0/8:80'];

/**
 * The surroundings of a server whose leases have a way out: the program itself, on this machine's loopback. Every connection leads to
 * one site.
 */
export async function openWorld(t: TestContext) {
  const site = await openSite(t, 'HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n');
  const provider = {
    ...{ backend: 'container', socket: 'unix:///nowhere/docker.sock', image: 'nowhere:1', egress: OPERATORS },
    prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
    limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
  };
  const options: TestServerOptions = {
    settings: { compute: { provider_one: provider } },
    outside: {
      lookUp: async () => [PUBLIC],
      dial: () => connect({ host: '127.0.0.1', port: site.port, allowHalfOpen: true }),
      isOwn: () => false,
      trust: systemOutside.trust,
    },
  };
  const port = await freePort();
  /** Those that run. */
  const programs = new Map<number, ChildProcess>();
  const dial = () => {
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    t.after(() => socket.destroy());
    return socket.on('error', () => {});
  };
  return {
    options,
    programs,
    start(): LineSession {
      const child = spawn(WATCHDOG, ['egress', String(port)], { stdio: ['pipe', 'pipe', 'inherit'] });
      programs.set(child.pid as number, child);
      t.after(() => child.kill('SIGKILL'));
      const ended = once(child, 'exit').then(() => programs.delete(child.pid as number));
      return { stdin: child.stdin, stdout: child.stdout, ended, kill: () => child.stdin.destroy() };
    },
    /** The status of a request that the lease makes; nothing where it has no way out. */
    async get(host: string): Promise<string> {
      const socket = dial();
      socket.end(`GET http://${host}/ HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
      let said = '';
      for await (const piece of socket) said += piece;
      return said.slice(9, 12);
    },
    /** Opens a tunnel over which nothing passes. */
    async tunnel(): Promise<Socket> {
      const socket = dial();
      socket.write('CONNECT 10.1.2.3:80 HTTP/1.1\r\n\r\n');
      const [piece] = await once(socket, 'data');
      assert.match(String(piece), /^HTTP\/1.1 200/);
      return socket;
    },
  };
}
