import type { SecretsOrder } from '../../backend.ts';
import { pack } from '../../kit/tar.ts';
import { IMAGE_ROOTS, ROOTS_BYTES_MAX, trustFiles } from '../../kit/trust.ts';
import type { Engine } from './engine.ts';
import { readFile } from './files.ts';

/** Puts the authority of a lease's secrets into a container that has not started, beside the roots of its image. */
export async function putTrust(engine: Engine, container: string, secrets: SecretsOrder): Promise<void> {
  const files = trustFiles(secrets, await readRoots(engine, container));
  const archive = pack(...files.map(({ path, content }) => ({ name: path.slice(1), content, mode: 0o444, owner: 0 })));
  await engine.ask('archive', (abortSignal) =>
    engine.docker.getContainer(container).putArchive(archive, { path: '/', abortSignal }),
  );
}

async function readRoots(engine: Engine, container: string): Promise<Buffer | undefined> {
  for (const path of IMAGE_ROOTS) {
    const roots = await readFile(engine, container, path, ROOTS_BYTES_MAX);
    if (roots?.length) return roots;
  }
  return undefined;
}
