import { join } from 'node:path';
import { freePort } from '../test/helper/free-port.ts';
import { start, untilAnswers } from './process.ts';

/** The running mock model server. */
export type Upstream = { pid: number; port: number; count(): Promise<number>; stop(): Promise<void> };

/** Starts a mock that answers after `delayMilliseconds`, and pauses between the chunks of a stream; or with an error. */
export async function startUpstream(
  directory: string,
  delayMilliseconds = 0,
  pauseMilliseconds = 0,
  status = 200,
): Promise<Upstream> {
  const port = await freePort();
  const log = join(directory, `upstream-${port}.log`);
  const child = start(
    process.execPath,
    [
      join(import.meta.dirname, 'mock-upstream.ts'),
      `${port}`,
      `${delayMilliseconds}`,
      `${pauseMilliseconds}`,
      `${status}`,
    ],
    log,
  );
  const url = `http://127.0.0.1:${port}/count`;
  await untilAnswers(child, url, log);
  return { pid: child.pid, port, count: async () => Number(await (await fetch(url)).text()), stop: () => child.stop() };
}
