import { readBounded } from '../../../net/read-bounded.ts';
import { unpackFile } from '../../kit/tar.ts';
import type { Engine } from './engine.ts';

/** Reads a plain file of a container that need not run; undefined where there is none. Throws where it is larger than `bytesMax`. */
export function readFile(
  { ask, docker }: Pick<Engine, 'ask' | 'docker'>,
  container: string,
  path: string,
  bytesMax: number,
): Promise<Buffer | undefined> {
  return ask('archive', async (abortSignal) => {
    const stream = await docker.getContainer(container).getArchive({ path, abortSignal });
    const archive = await readBounded(stream as AsyncIterable<Buffer>, bytesMax);
    if (!archive) throw new Error(`the file ${path} of the image is too large`);
    return unpackFile(archive);
  }).catch((error) => {
    if ((error as { statusCode?: number }).statusCode === 404) return undefined;
    throw error;
  });
}
