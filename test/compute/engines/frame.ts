/** Returns what an engine sends of a command's output: a head with the stream (1 is stdout, 2 is stderr) and the length, and the content. */
export function frame(stream: number, content: Buffer | string): Buffer {
  const bytes = Buffer.from(content);
  const head = Buffer.alloc(8);
  head[0] = stream;
  head.writeUInt32BE(bytes.length, 4);
  return Buffer.concat([head, bytes]);
}
