import { mkdtempSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { type Filled, fillInstallation } from './filled.ts';
import type { Flags } from './flags.ts';
import { type Installation, install } from './purser.ts';
import { compileMock, startCompiledUpstream, startUpstream, type Upstream } from './upstream.ts';

/** The shared resources of the rows. A row closes whatever else it opens. */
export type Bench = Flags & {
  /** Removed when the bench ends. */
  directory: string;
  /** Answers at once: compiled from C where that can be, so that it takes next to no time from the measured server. No streams. */
  upstream: Upstream;
  isCompiled: boolean;
  /** Makes a new, empty installation. Its model server is the mock by default; `broken` as for `install`. */
  fresh(upstream?: Upstream, broken?: Record<string, number>): Promise<Installation>;
  /** Returns the installation with many wallets and entries. It is filled once, for all rows. */
  filled(): Promise<Filled>;
  [Symbol.asyncDispose](): Promise<void>;
};

export async function openBench(flags: Flags): Promise<Bench> {
  await using opening = new AsyncDisposableStack();
  const directory = mkdtempSync(join(flags.dir, 'purser-bench-'));
  const remove = () => rmSync(directory, { recursive: true, force: true });
  process.on('exit', remove); // Also on Ctrl-C. Runs after the handler that ends the processes.
  opening.defer(() => {
    process.off('exit', remove);
    remove();
  });
  const mock = compileMock(directory);
  const upstream = opening.adopt(
    await (mock ? startCompiledUpstream(directory, mock) : startUpstream(directory)),
    (it) => it.stop(),
  );
  let installations = 0;
  let filled: Promise<Filled> | undefined;
  const fresh = (at = upstream, broken?: Record<string, number>) =>
    install(join(directory, `data-${installations++}`), at.port, broken);
  const opened = opening.move();
  return {
    ...flags,
    directory,
    upstream,
    isCompiled: mock !== undefined,
    fresh,
    filled: () => {
      filled ??= fresh().then((it) => fillInstallation(it, flags));
      return filled;
    },
    [Symbol.asyncDispose]: () => opened.disposeAsync(),
  };
}
