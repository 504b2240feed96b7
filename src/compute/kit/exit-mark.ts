import { randomBytes } from 'node:crypto';
import { type Readable, Transform } from 'node:stream';
import { WAITING } from '../machine/waiting.ts';
import { partOf } from './between.ts';

/**
 * Runs a command and prints its exit code behind a mark, as the last output on standard error. LXD before 5.21 reports the end of a
 * command only when no process holds its output, not even in the background.
 */
export const WITH_EXIT_MARK =
  'cd "$1" 2>/dev/null; mark=$2; shift 2; "$@"; code=$?; echo "$mark$code" >&2; exit "$code"';

/**
 * Returns a script for an engine that may lose the end of a command's output: both outputs end with its exit code behind a mark.
 * The mark is the first line of its input: commands may read any process's arguments.
 */
export const withMark = (script: string) => `IFS= read -r purser_mark
trap 'code=$?; echo "$purser_mark$code"; echo "$purser_mark$code" >&2' EXIT
${script}`;

/** Makes a mark that no output has by chance. */
export const newMark = () => randomBytes(12).toString('hex');

const CODE_BYTES_MAX = 4; // Three digits and a line feed.

/** Passes a stream on without the mark and its code, and reports the code. */
export function withoutMark(mark: string, onCode: (code: number) => void): Transform {
  const wanted = Buffer.from(mark);
  let held: Buffer = Buffer.alloc(0);
  let hasCode = false;

  return new Transform({
    ...WAITING,
    transform(chunk: Buffer, _, done) {
      if (hasCode) return done(null, chunk);
      const bytes = held.length ? Buffer.concat([held, chunk]) : chunk;
      const at = bytes.indexOf(wanted);
      if (at < 0) {
        const plain = bytes.length - partOf(wanted, bytes);
        held = bytes.subarray(plain);
        return plain ? done(null, bytes.subarray(0, plain)) : done();
      }
      if (at > 0) this.push(bytes.subarray(0, at));
      held = bytes.subarray(at);
      const code = held.subarray(wanted.length, wanted.length + CODE_BYTES_MAX);
      const end = code.indexOf('\n');
      if (end < 0) return done();
      hasCode = true;
      onCode(Number(code.subarray(0, end).toString()));
      const rest = held.subarray(wanted.length + end + 1);
      held = Buffer.alloc(0);
      return rest.length ? done(null, rest) : done();
    },
    flush(done) {
      done(null, held.length && !hasCode ? held : null);
    },
  });
}

/** Removes the marks of `withMark` from both outputs. Once both have come (`whole`), the command's output is complete. */
export function takeMarks(mark: string, stdout: Readable, stderr: Readable) {
  const { promise: whole, resolve } = Promise.withResolvers<void>();
  let missing = 2;
  const noteMark = () => {
    missing -= 1;
    if (missing === 0) resolve();
  };
  return {
    stdout: stdout.pipe(withoutMark(mark, noteMark)),
    stderr: stderr.pipe(withoutMark(mark, noteMark)),
    whole,
    isWhole: () => missing === 0,
    hasNone: () => missing === 2,
  };
}
