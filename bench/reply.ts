/** The part of an answer that the bench uses. The text is kept only for refusals, to say what went wrong. */
export type Reply = { status: number; text: string };

const END_OF_HEAD = Buffer.from('\r\n\r\n');
const LAST_CHUNK = Buffer.from('0\r\n\r\n');

/**
 * Creates a reader of the answers on one connection, with one request in flight at a time. It returns an answer once it is
 * complete. It understands what the servers of the bench send: a Content-Length, or chunks.
 */
export function replyReader(): (bytes: Buffer) => Reply | undefined {
  let kept: Buffer | undefined;
  return (bytes) => {
    const all = kept ? Buffer.concat([kept, bytes]) : bytes;
    const end = wholeLength(all);
    if (end === undefined) {
      kept = kept ? all : Buffer.from(bytes); // The socket reuses its buffer.
      return undefined;
    }
    kept = undefined;
    const status = Number(all.toString('latin1', 9, 12));
    return { status, text: status >= 400 ? all.toString('latin1', end.head, end.whole) : '' };
  };
}

function wholeLength(bytes: Buffer): { head: number; whole: number } | undefined {
  const at = bytes.indexOf(END_OF_HEAD);
  if (at < 0) return undefined;
  const head = at + END_OF_HEAD.length;
  const length = /content-length: *(\d+)/i.exec(bytes.toString('latin1', 0, head))?.[1];
  if (length !== undefined) {
    const whole = head + Number(length);
    return bytes.length >= whole ? { head, whole } : undefined;
  }
  const isWhole = bytes.subarray(-LAST_CHUNK.length).equals(LAST_CHUNK);
  return isWhole ? { head, whole: bytes.length } : undefined;
}
