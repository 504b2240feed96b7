import { join } from 'node:path';
import { freePort } from '../test/helper/free-port.ts';
import { start, untilAnswers } from './process.ts';

/** A running bare proxy (bench/bare-proxy.ts). */
export type Bare = { pid: number; port: number; stop(): Promise<void> };

export async function startBare(directory: string, upstreamPort: number): Promise<Bare> {
  const port = await freePort();
  const log = join(directory, `bare-${port}.log`);
  const script = join(import.meta.dirname, 'bare-proxy.ts');
  const child = start(process.execPath, [script, `${port}`, `${upstreamPort}`], log);
  await untilAnswers(child, `http://127.0.0.1:${port}/readyz`, log);
  return { pid: child.pid, port, stop: () => child.stop() };
}
