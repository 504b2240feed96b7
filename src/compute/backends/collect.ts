import type { Readable } from 'node:stream';
import type { ExecResult } from '../backend.ts';

/** Reads a stream to its end and keeps its first `most` bytes; what follows is read and thrown away. */
export async function collect(stream: Readable, most: number): Promise<{ bytes: Buffer; truncated: boolean }> {
  const chunks: Buffer[] = [];
  let kept = 0;
  let truncated = false;
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    if (kept + chunk.length > most) truncated = true;
    if (kept < most) chunks.push(chunk.subarray(0, most - kept));
    kept += chunk.length;
  }
  return { bytes: Buffer.concat(chunks), truncated };
}

/** Both streams of a command, side by side. */
export async function collectBoth(
  stdout: Readable,
  stderr: Readable,
  most: number,
): Promise<Omit<ExecResult, 'exitCode' | 'timedOut'>> {
  const [out, err] = await Promise.all([collect(stdout, most), collect(stderr, most)]);
  return { stdout: out.bytes, stderr: err.bytes, stdoutTruncated: out.truncated, stderrTruncated: err.truncated };
}
