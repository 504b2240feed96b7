import type { Readable } from 'node:stream';
import { collectPieces } from '../../net/pieces.ts';
import type { ExecResult, OutputBudget } from '../backend.ts';

/** Called with every piece of a stream as it comes. The next piece is read when the returned promise has resolved. */
export type OutputListener = (piece: Buffer) => Promise<void> | undefined;

/**
 * Reads a stream to its end and keeps its first `most` bytes, as far as `budget` has room for them; the rest is read and discarded.
 * `listener` gets every piece.
 */
export async function collect(
  stream: Readable,
  bytesMax: number,
  budget?: OutputBudget,
  listener?: OutputListener,
): Promise<{ bytes: Buffer; truncated: boolean }> {
  const kept = collectPieces();
  let truncated = false;
  budget?.unwanted.addEventListener('abort', kept.clear);
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      if (chunk.length) await listener?.(chunk);
      if (truncated || chunk.length === 0) continue;
      const piece = chunk.subarray(0, bytesMax - kept.length());
      truncated = piece.length < chunk.length;
      if (budget && piece.length && !budget.take(piece)) truncated = true;
      else kept.add(piece);
    }
    return { bytes: kept.whole(), truncated };
  } finally {
    budget?.unwanted.removeEventListener('abort', kept.clear);
  }
}

/** Collects both streams of a command in parallel. */
export async function collectBoth(
  stdout: Readable,
  stderr: Readable,
  { streamBytesMax, budget }: { streamBytesMax: number; budget?: OutputBudget | undefined },
): Promise<Omit<ExecResult, 'exitCode' | 'timedOut'>> {
  const [out, err] = await Promise.all([
    collect(stdout, streamBytesMax, budget),
    collect(stderr, streamBytesMax, budget),
  ]);
  return { stdout: out.bytes, stderr: err.bytes, stdoutTruncated: out.truncated, stderrTruncated: err.truncated };
}
