import { Transform } from 'node:stream';
import { WAITING } from '../machine/waiting.ts';

/**
 * Runs `$@`, marks on standard error, with `$mark`, where its output begins and ends, and prints its exit code there: so the
 * engine's messages stand apart. Discards this shell's message about a command that a signal ended, such as "Terminated".
 */
export const RUN_MARKED = `printf '%s{' "$mark" >&2
exec 3>&2 2>/dev/null
(exec "$@" 2>&3 3>&-)
code=$?
printf '%s}%d;' "$mark" "$code" >&3`;

/**
 * Runs `$2…` as RUN_MARKED does, with the mark `$1`, and then reads the unread input to its end. A server that ends a connection
 * while input still arrives resets it, and a reset discards output that is on its way, with the exit code. Exits with the command's
 * code, which counts where the mark is lost. A command that signals its process group does not end this shell: a trapped signal has
 * its default effect in the shell's children.
 */
export const MARKED = `mark=$1; shift
trap : HUP INT QUIT TERM USR1 USR2 ALRM
${RUN_MARKED}
cat >/dev/null
exit "$code"`;

type MarkedOutput = { begun(): void; exitCode(code: number): void; noise(text: string): void };

const NOISE_BYTES_MAX = 4096;

/** Passes on the output between the two marks, and reads the exit code after the second. */
export function between(mark: string, tell: MarkedOutput): Transform {
  const [open, shut] = [Buffer.from(`${mark}{`), Buffer.from(`${mark}}`)];
  let held: Buffer = Buffer.alloc(0);
  let where: 'before' | 'inside' | 'after' = 'before';
  return new Transform({
    ...WAITING,
    transform(chunk: Buffer, _, done) {
      held = Buffer.concat([held, chunk]);
      if (where === 'before') {
        const at = held.indexOf(open);
        if (at < 0) {
          held = held.subarray(-NOISE_BYTES_MAX);
          tell.noise(held.toString());
          return done();
        }
        held = held.subarray(at + open.length);
        where = 'inside';
        tell.begun();
      }
      if (where === 'inside') {
        const at = held.indexOf(shut);
        // Bytes that may begin the mark are kept back until they are known to be output.
        const sure = at < 0 ? held.length - partOf(shut, held) : at;
        if (sure > 0) this.push(held.subarray(0, sure));
        held = held.subarray(at < 0 ? sure : at + shut.length);
        if (at >= 0) where = 'after';
      }
      if (where === 'after') {
        const code = /^(\d{1,3});/.exec(held.subarray(0, 8).toString('latin1'))?.[1];
        if (code !== undefined) tell.exitCode(Number(code));
        held = held.subarray(0, 8);
      }
      done();
    },
    flush(done) {
      if (where === 'inside') this.push(held);
      done();
    },
  });
}

/** Returns how many bytes at the end of `bytes` may be the beginning of `mark`. */
export function partOf(mark: Buffer, bytes: Buffer): number {
  for (let length = Math.min(mark.length - 1, bytes.length); length > 0; length--)
    if (bytes.subarray(-length).equals(mark.subarray(0, length))) return length;
  return 0;
}
