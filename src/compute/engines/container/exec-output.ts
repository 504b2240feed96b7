import { PassThrough, type Readable, Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { WAITING } from '../../machine/waiting.ts';

/** Each piece begins with the number of its stream, three empty bytes and its length (Docker Engine API, attach). */
const HEAD_BYTES = 8;
/** The number of a command's standard error. */
export const STDERR = 2;
/**
 * The silence after which the output counts as complete: output still in transit arrives within it, and background processes may
 * keep the stream open.
 */
const QUIET_MILLISECONDS = 200;

type ExecOutput = {
  stdout: PassThrough;
  stderr: PassThrough;
  /** Resolves when nothing has come for a moment although there was room for it, or nothing can come any more. */
  quiet(): Promise<void>;
  /** Stops taking input. What has arrived can still be read. */
  end(): void;
};

/**
 * The output of a command through an engine: one stream of a terminal, or two in one that are separated here. It is read no faster
 * than by its reader, so unread output stays with the command.
 */
export function partOutput(stream: Readable, { terminal }: { terminal: boolean }): ExecOutput {
  const [stdout, stderr] = [new PassThrough(WAITING), new PassThrough(WAITING)];
  let head: Buffer = Buffer.alloc(0);
  let pieceBytes = 0;
  let to = stdout;
  let chunks = 0;

  /** Passes on the content of a chunk, each stream's in one piece, and returns the streams that are full. */
  function part(chunk: Buffer): PassThrough[] {
    const parts = new Map<PassThrough, Buffer[]>([
      [stdout, []],
      [stderr, []],
    ]);
    for (let at = 0; at < chunk.length; ) {
      if (pieceBytes === 0) {
        const more = chunk.subarray(at, at + HEAD_BYTES - head.length);
        head = Buffer.concat([head, more]);
        at += more.length;
        if (head.length < HEAD_BYTES) break;
        to = head[0] === STDERR ? stderr : stdout;
        pieceBytes = head.readUInt32BE(4);
        head = Buffer.alloc(0);
      } else {
        const piece = chunk.subarray(at, at + pieceBytes);
        at += piece.length;
        pieceBytes -= piece.length;
        parts.get(to)?.push(piece);
      }
    }
    const full: PassThrough[] = [];
    for (const [stream, [first, ...more]] of parts)
      if (first && !stream.write(more.length ? Buffer.concat([first, ...more]) : first)) full.push(stream);
    return full;
  }
  const parted = new Writable({
    async write(chunk: Buffer, _, done) {
      await Promise.all(part(chunk).map(hasRoom));
      done();
    },
  });
  parted.once('finish', () => {
    stdout.end();
    stderr.end();
  });
  stream.on('data', () => {
    chunks += 1;
  });
  const first = terminal ? stdout : parted;
  if (terminal) stdout.once('finish', () => stderr.end());
  stream.pipe(first);
  return {
    stdout,
    stderr,
    async quiet() {
      for (;;) {
        const before = chunks;
        await sleep(QUIET_MILLISECONDS);
        if (stream.destroyed) return;
        if (chunks === before && !stdout.writableNeedDrain && !stderr.writableNeedDrain) return;
      }
    },
    end() {
      stream.unpipe(first);
      first.end();
    },
  };
}

function hasRoom(stream: PassThrough): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      stream.off('drain', done).off('close', done);
      resolve();
    };
    stream.on('drain', done).on('close', done);
  });
}
