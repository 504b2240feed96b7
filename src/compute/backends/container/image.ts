import { type Engine, statusOf, textOf } from './engine.ts';

const PULL_MILLISECONDS = 1_800_000;

/** Docker answers 404, Podman's own API 500 with these words. */
export const lacksImage = (error: unknown) =>
  statusOf(error) !== undefined && /no such image|image not known/i.test(textOf(error));

/** Pulls one image, once at a time: concurrent callers wait for the same pull. */
export type Puller = { pull(): Promise<void>; stop(): void };

export function createPuller({ docker }: Engine, image: string): Puller {
  let pulling: Promise<void> | undefined;
  const stopping = new AbortController();

  async function pull(): Promise<void> {
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
    pull() {
      pulling ??= pull().finally(() => {
        pulling = undefined;
      });
      return pulling;
    },
    stop: () => stopping.abort(new Error('Purser is stopping')),
  };
}
