import { type Engine, statusOf, textOf } from './engine.ts';

const PULL_MILLISECONDS = 1_800_000;

/** Returns whether the image is missing: Docker answers 404, Podman's own API 500 with these words. */
export const lacksImage = (error: unknown) =>
  statusOf(error) !== undefined && /no such image|image not known/i.test(textOf(error));

/** Returns those of the images that the engine does not have. */
export async function missingImages({ request }: Engine, images: readonly string[]): Promise<string[]> {
  const isMissing = async (image: string) => {
    try {
      await request('GET', `/images/${image}/json`);
      return false;
    } catch (error) {
      if (lacksImage(error)) return true;
      throw error;
    }
  };
  const missing = await Promise.all(images.map(isMissing));
  return images.filter((_, at) => missing[at]);
}

/** Pulls images, each once at a time: concurrent callers wait for the same pull. */
export type Puller = { pull(image: string): Promise<void>; stop(): void };

export function createPuller({ docker }: Engine): Puller {
  const pulls = new Map<string, Promise<void>>();
  const stopping = new AbortController();

  async function pull(image: string): Promise<void> {
    const abortSignal = AbortSignal.any([stopping.signal, AbortSignal.timeout(PULL_MILLISECONDS)]);
    const stream = await docker.pull(image, { abortSignal });
    let failure: string | undefined;
    await new Promise<void>((resolve, reject) =>
      docker.modem.followProgress(
        stream,
        (error) => (error ? reject(error) : resolve()),
        // The status is 200 before anything was pulled; a later error is a line of the body.
        (line: { error?: string }) => {
          failure ??= line.error;
        },
      ),
    );
    if (failure !== undefined) throw new Error(failure);
    abortSignal.throwIfAborted();
  }

  return {
    pull(image) {
      const pulling = pulls.get(image) ?? pull(image).finally(() => pulls.delete(image));
      pulls.set(image, pulling);
      return pulling;
    },
    stop: () => stopping.abort(new Error('Purser is stopping')),
  };
}
