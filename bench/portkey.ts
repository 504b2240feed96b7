import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { freePort } from '../test/helper/free-port.ts';
import { run, start, untilAnswers } from './process.ts';

const PEERS = join(import.meta.dirname, 'peers');
const SERVER = join(PEERS, 'node_modules', '@portkey-ai', 'gateway', 'build', 'start-server.js');

/** A running @portkey-ai/gateway. It meters nothing, so it is the unmetered baseline. */
export type Portkey = {
  pid: number;
  port: number;
  headers: Record<string, string>;
  /** The headers of a request that goes to the model server of this port first. */
  headersAfter(broken: number): Record<string, string>;
  stop(): Promise<void>;
};

/** Starts it on the Node that runs the bench. Returns undefined if it is missing and cannot be installed. */
export async function startPortkey(directory: string, upstreamPort: number): Promise<Portkey | undefined> {
  if (!existsSync(SERVER)) {
    try {
      console.error('Installing @portkey-ai/gateway into bench/peers …');
      // npm has the environment's own certificates.
      await run('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], { cwd: PEERS, env: process.env });
    } catch (error) {
      console.error(`bench/peers cannot be installed: ${(error as Error).message}`);
      return undefined;
    }
  }
  const port = await freePort();
  const log = join(directory, 'portkey.log');
  const args = ['--require', join(PEERS, 'bind-loopback.cjs'), SERVER, `--port=${port}`, '--headless'];
  const child = start(process.execPath, args, log, { NODE_ENV: 'production' });
  await untilAnswers(child, `http://127.0.0.1:${port}/`, log);
  const urlOf = (at: number) => `http://127.0.0.1:${at}/v1`;
  const headers = { 'x-portkey-provider': 'openai', 'x-portkey-custom-host': urlOf(upstreamPort) };
  const headersAfter = (broken: number) => {
    const targets = [broken, upstreamPort].map((at) => ({
      provider: 'openai',
      custom_host: urlOf(at),
      api_key: 'unchecked',
    }));
    return { 'x-portkey-config': JSON.stringify({ strategy: { mode: 'fallback' }, targets }) };
  };
  return { pid: child.pid, port, headers, headersAfter, stop: () => child.stop() };
}
