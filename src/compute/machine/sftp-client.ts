import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { Readable } from 'node:stream';
import { collectPieces } from '../../net/pieces.ts';
import type { GuestSession } from '../backend.ts';
import { faultOf } from './sftp-fault.ts';

/** Milliseconds without a byte from the machine after which a request fails. Generous, as 1 MiB takes a while on a slow line. */
const SILENCE_MILLISECONDS = 120_000;
/** A descriptor that is to be closed waits this long for another request. */
const CLOSE_MILLISECONDS = 20;
const WORDS_BYTES_MAX = 4096;
/** More is not copied to be written at once. */
const JOINED_BYTES_MAX = 64 * 1024;
/** Bytes kept to match the last line of an answer; that line is shorter. */
const END_BYTES = 64;
/**
 * The last line of an answer, and of what stands on standard error. To compile an expression for each request costs more than the
 * rest.
 */
const [ANSWER_END, WORDS_END] = [/([0-9a-f]{32}) (\d{1,3})\n$/, /([0-9a-f]{32})\n$/];

/** The session in the machine has ended or does not respond. The last request may or may not have taken effect. */
export class ScriptLost extends Error {}

type ScriptRequest = {
  verb: string;
  words?: (Buffer | string | number)[];
  /** Data that follows the request on standard input; the verb reads exactly these bytes. */
  input?: Buffer[];
  /** The longest answer; a longer one is discarded and throws SftpFault. */
  answerBytesMax?: number;
  /** Counts bytes of the answer. When it returns false, the answer is discarded like one that is too long. */
  take?: (bytes: number) => boolean;
};

export type ScriptClient = {
  /**
   * Runs a verb. Returns its standard output, the token of the request, and the standard error of `read`. Throws SftpFault and
   * ScriptLost.
   */
  ask(question: ScriptRequest): Promise<{ output: Buffer; token: string; words: string }>;
  /** Closes a descriptor in the machine. It has no answer, and takes its place before the next request. */
  close(descriptor: number): void;
  /** Returns the milliseconds of a clock that no correction of the time moves: what was read is used for some of them. */
  milliseconds(): number;
};

const elapsed = () => performance.now();

/** Opens a client of `SFTP_SCRIPT` in a machine. Requests are sent one at a time. */
export function createScriptClient(
  { stdin, stdout, stderr, ended, kill }: GuestSession,
  milliseconds = elapsed,
): ScriptClient {
  let lost: ScriptLost | undefined;
  /** Requests to close, which go with the next request. */
  let closing = '';
  /** Rejects the pending request, if there is one. */
  let giveUp: ((lost: ScriptLost) => void) | undefined;
  function lose(reason: string) {
    lost ??= new ScriptLost(reason);
    giveUp?.(lost);
  }
  void ended.then(
    () => lose('the session in the machine has ended'),
    (error: Error) => lose(error.message),
  );
  stdin.on('error', () => lose('the session in the machine takes no more input'));
  const out = createListener(stdout, lose);
  const err = createListener(stderr as Readable, lose);

  async function ask({ verb, words = [], input, answerBytesMax = WORDS_BYTES_MAX, take }: ScriptRequest) {
    assert(!giveUp, 'the script is asked one thing at a time');
    if (lost) throw lost;
    const { promise: loss, reject } = Promise.withResolvers<never>();
    giveUp = reject;
    const token = randomUUID().replaceAll('-', ''); // Node makes many at once.
    const silence = setTimeout(() => {
      lose(`the machine was silent for ${SILENCE_MILLISECONDS / 1000} s`);
      kill();
    }, SILENCE_MILLISECONDS);
    const active = () => {
      if (giveUp === reject) silence.refresh(); // Words may come later than the answer.
    };
    try {
      const answered = out.until(ANSWER_END, token, answerBytesMax, active, take);
      const errorText = err.until(WORDS_END, token, WORDS_BYTES_MAX, active);
      // Small ones are written at once: each write is a call of the system, and on some roads a packet.
      const lines = `${closing}${[token, verb, ...words.map(wordOf)].join(' ')}\n`;
      closing = '';
      const pieces = [Buffer.from(lines), ...(input ?? [])];
      const isSmall = pieces.reduce((sum, it) => sum + it.length, 0) <= JOINED_BYTES_MAX;
      for (const it of isSmall ? [Buffer.concat(pieces)] : pieces) stdin.write(it);
      const output = await Promise.race([answered, loss]);
      const isDone = output.end[2] === '0';
      // The other output is another packet, which is not waited for where nothing is to be learned from it.
      const errors = isDone && verb !== 'read' ? undefined : await Promise.race([errorText, loss]);
      if (isDone) {
        if (output.isCut) throw faultOf('the answer is too large');
        return { output: output.bytes, token, words: errors?.bytes.toString() ?? '' };
      }
      if (input) stdin.write(`\n${token}\n`);
      throw faultOf(errors?.bytes.toString() ?? '');
    } finally {
      clearTimeout(silence);
      giveUp = undefined;
    }
  }
  /** Writes what is to be closed, if no request took it along. The end of the session closes all. */
  function flush(): void {
    if (closing && stdin.writable) stdin.write(closing);
    closing = '';
  }
  return {
    milliseconds,
    ask,
    close(descriptor) {
      if (!closing) setTimeout(flush, CLOSE_MILLISECONDS).unref();
      closing += `- close ${descriptor}\n`;
    },
  };
}

/** Encodes an argument: all but plainly harmless characters become octal escapes of `printf %b`. */
export function wordOf(it: Buffer | string | number): string {
  const bytes = Buffer.isBuffer(it) ? it : Buffer.from(String(it));
  return bytes
    .toString('latin1')
    .replace(/[^A-Za-z0-9/._:=+-]/g, (one) => `\\0${one.charCodeAt(0).toString(8).padStart(3, '0')}`);
}

type ScriptAnswer = { bytes: Buffer; end: RegExpExecArray; isCut: boolean };

/** Reads answers from a stream, each up to an expected end. Unexpected output breaks the session. */
function createListener(stream: Readable, lose: (reason: string) => void) {
  let listen: ((chunk: Buffer) => void) | undefined;
  stream.on('error', () => {}); // `ended` reports the error.
  stream.on('data', (chunk: Buffer) => {
    if (listen) listen(chunk);
    else lose('the session in the machine speaks without being asked');
  });
  return {
    until: (end: RegExp, token: string, bytesMax: number, active: () => void, take = (_bytes: number) => true) =>
      new Promise<ScriptAnswer>((resolve) => {
        const pieces = collectPieces();
        let length = 0;
        let isCut = false;
        let last: Buffer = Buffer.alloc(0);
        listen = (chunk) => {
          active();
          last = Buffer.concat([last, chunk.subarray(-END_BYTES)]).subarray(-END_BYTES);
          length += chunk.length;
          if (!isCut && !take(chunk.length)) {
            isCut = true;
            pieces.clear();
          }
          isCut ||= length > bytesMax + END_BYTES;
          if (!isCut) pieces.add(chunk);
          const match = end.exec(last.toString('latin1'));
          if (match?.[1] !== token) return;
          listen = undefined;
          const whole = pieces.whole();
          isCut ||= length - match[0].length > bytesMax;
          resolve({ bytes: isCut ? whole : whole.subarray(0, -match[0].length), end: match, isCut });
        };
      }),
  };
}
