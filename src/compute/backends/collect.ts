import type { Readable } from 'node:stream';

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
