import { Refusal } from '../../base/refusal.ts';
import type { StreamedBody } from '../body.ts';

/** A body of `multipart/form-data`, part by part as it comes: no part is ever whole in memory. */

const HEAD_BYTES_MAX = 16 * 1024;
const NAME = /;\s*name="([^"]*)"/i;
const FILENAME = /;\s*filename="([^"]*)"/i;
const CRLF = '\r\n';

const broken = (what: string) => new Refusal('invalid_request', `The body is no multipart/form-data: ${what}.`);

type Part = {
  /** The names of the field and of the file, without their escapes. */
  name: string;
  filename: string | undefined;
  /** Returns the next piece, undefined at the end of the part. */
  next(): Promise<Buffer | undefined>;
};

/** Returns the boundary that a media type names. Throws `invalid_request` without one. */
export function boundaryOf(contentType: string): string {
  const [, quoted, plain] = /;\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))/i.exec(contentType) ?? [];
  const boundary = quoted ?? plain;
  if (boundary === undefined) throw broken('it names no boundary');
  return boundary;
}

/** Yields the parts of a body. Each has to be read to its end before the next. */
export async function* partsOf(body: Pick<StreamedBody, 'next'>, boundary: string): AsyncGenerator<Part> {
  const delimiter = Buffer.from(`${CRLF}--${boundary}`);
  let waiting: Buffer = Buffer.from(CRLF); // The first delimiter has no line before it.
  let hasEnded = false;
  async function more(): Promise<void> {
    const piece = await body.next();
    if (!piece) throw broken('it breaks off');
    waiting = Buffer.concat([waiting, piece]);
  }
  /** Returns what stands before `mark` and takes both. */
  async function before(mark: string): Promise<Buffer> {
    let at = waiting.indexOf(mark);
    for (; at < 0; at = waiting.indexOf(mark)) {
      if (waiting.length > HEAD_BYTES_MAX) throw broken('a head is too long');
      await more();
    }
    const found = waiting.subarray(0, at);
    waiting = waiting.subarray(at + mark.length);
    return found;
  }

  await before(delimiter.toString('latin1'));
  for (;;) {
    while (waiting.length < 2) await more();
    if (waiting.subarray(0, 2).toString() === '--') return;
    await before(CRLF);
    const head = (await before(CRLF + CRLF)).toString();
    hasEnded = false;
    yield {
      ...namesIn(head),
      async next() {
        if (hasEnded) return undefined;
        for (;;) {
          const at = waiting.indexOf(delimiter);
          // What may be the beginning of a delimiter waits for the rest of it.
          const free = at < 0 ? waiting.length - delimiter.length + 1 : at;
          if (free > 0) {
            const piece = waiting.subarray(0, free);
            waiting = waiting.subarray(free);
            return piece;
          }
          if (at === 0) {
            waiting = waiting.subarray(delimiter.length);
            hasEnded = true;
            return undefined;
          }
          await more();
        }
      },
    };
    if (!hasEnded) throw broken('a part was not read');
  }
}

/** Returns the names in the head of a part. Three characters are escaped in them (the HTML standard, multipart/form-data). */
function namesIn(head: string): Pick<Part, 'name' | 'filename'> {
  const line = head.split(CRLF).find((it) => /^content-disposition:/i.test(it)) ?? '';
  const plain = (text: string) =>
    text.replace(/%(22|0A|0D)/gi, (_, code) => String.fromCharCode(Number.parseInt(code, 16)));
  const name = NAME.exec(line)?.[1];
  if (name === undefined) throw broken('a part has no name');
  const filename = FILENAME.exec(line)?.[1];
  return { name: plain(name), filename: filename === undefined ? undefined : plain(filename) };
}
