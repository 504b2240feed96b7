import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { freePort } from '../test/helper/free-port.ts';
import { start, untilAnswers } from './process.ts';

/** The running mock model server. */
export type Upstream = { pid: number; port: number; count(): Promise<number>; stop(): Promise<void> };

const mockOf = (extension: string) => join(import.meta.dirname, `mock-upstream.${extension}`);

/** Starts a mock that answers after `delayMilliseconds`, and pauses between the chunks of a stream; or with an error. */
export const startUpstream = (
  directory: string,
  delayMilliseconds = 0,
  pauseMilliseconds = 0,
  status = 200,
): Promise<Upstream> =>
  startMock(directory, process.execPath, [
    mockOf('ts'),
    ...[delayMilliseconds, pauseMilliseconds, status].map((it) => `${it}`),
  ]);

/** Compiles the mock in C into the directory. Returns its file, or undefined where there is no compiler. */
export function compileMock(directory: string): string | undefined {
  const file = join(directory, 'mock-upstream');
  return spawnSync('cc', ['-O2', '-o', file, mockOf('c')], { stdio: 'ignore' }).status === 0 ? file : undefined;
}

/** Starts the mock in C: single answers at once, no streams. */
export const startCompiledUpstream = (directory: string, file: string): Promise<Upstream> =>
  startMock(directory, file, []);

async function startMock(directory: string, program: string, args: readonly string[]): Promise<Upstream> {
  const port = await freePort();
  const log = join(directory, `upstream-${port}.log`);
  const child = start(program, [...args, `${port}`], log);
  const url = `http://127.0.0.1:${port}/count`;
  await untilAnswers(child, url, log);
  return { pid: child.pid, port, count: async () => Number(await (await fetch(url)).text()), stop: () => child.stop() };
}
