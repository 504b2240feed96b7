import { collectChunks } from './pieces.ts';

/**
 * Reads the whole body. Returns undefined when it is longer than `bytesMax`; the rest is then not read. Throws when it
 * breaks off.
 */
export async function readBounded(body: AsyncIterable<Buffer>, bytesMax: number): Promise<Buffer | undefined> {
  const chunks = collectChunks();
  let length = 0;
  for await (const chunk of body) {
    length += chunk.length;
    if (length > bytesMax) return undefined;
    chunks.add(chunk);
  }
  return chunks.take();
}

/** Reads the text of an answer from outside. Throws an Error when it is longer than `bytesMax`. */
export async function readAnswerText(body: AsyncIterable<Buffer>, bytesMax: number): Promise<string> {
  const bytes = await readBounded(body, bytesMax);
  if (!bytes) throw new Error(`the answer is longer than ${bytesMax} bytes`);
  return bytes.toString('utf8');
}
