import { Refusal } from '../../base/refusal.ts';
import { inTime } from '../../net/deadline.ts';
import type { Backend, Ref } from '../backend.ts';
import { beginRun } from './run.ts';
import { wordOf } from './sftp-client.ts';
import { refusePath } from './shell.ts';

/** Many small files in one session: a session for each would take a minute for a thousand. */

const SECONDS = 3600;
/** The time in which the session has to begin. Its caller, who closes it, waits for longer. */
const BEGIN_MILLISECONDS = 60_000;
/** The time in which one file has to be written. */
const FILE_MILLISECONDS = 60_000;
const WORDS_LENGTH_MAX = 200;
/** The most that the machine may print of one file. Its tenant decides what it prints, so more ends the session. */
const OUTPUT_LENGTH_MAX = 64 * 1024;

/**
 * Reads a line with the length and the path of a file, then its bytes, and prints a line when it is there. The next file comes only
 * after that, since the `head` of busybox reads ahead. Each is replaced whole or not at all, and keeps its mode.
 */
const RECEIVE_EACH = `say ok
while read -r length path; do
  path=$(printf '%b.' "$path"); path=\${path%.}
  fresh=$path.purser-$$
  words=$({
    [ ! -d "$path" ] || { echo is a directory.; exit 1; }
    mkdir -p "\${path%/*}/" && head -c "$length" >"$fresh" && [ "$(wc -c <"$fresh")" -eq "$length" ] || exit 1
    [ ! -f "$path" ] || { mode=$(stat -Lc %a "$path") && chmod "$mode" "$fresh"; }
    mv -f "$fresh" "$path" || exit 1
  } 2>&1 <&0) || { rm -f "$fresh" 2>/dev/null; printf 'no %s\\n' "$words"; exit 0; }
  echo yes
done`;

export type SmallFiles = {
  /** Writes a file to an absolute path. Throws refusals for a path that cannot be written. */
  store(path: string, content: Buffer): Promise<void>;
  close(): void;
};

/** Opens a session that writes files. */
export async function openSmallFiles(backend: Backend, ref: Ref): Promise<SmallFiles> {
  const order = { text: RECEIVE_EACH, input: 'fed' as const, timeoutSeconds: SECONDS };
  const { run } = await beginRun(backend, ref, order, BEGIN_MILLISECONDS);
  let output = '';
  let hear: () => void = () => {};
  const lost = Promise.withResolvers<never>();
  lost.promise.catch(() => {}); // The file that waits for it has the rejection.
  run.stdout.setEncoding('utf8').on('data', (text: string) => {
    if (output.length > OUTPUT_LENGTH_MAX) return; // The session is being killed.
    output += text;
    if (output.length > OUTPUT_LENGTH_MAX) {
      lost.reject(new Error('the machine prints more than an upload does'));
      run.kill();
    } else if (output.includes('\n')) hear();
  });
  run.ended.then(() => {
    if (!output.includes('\n')) lost.reject(new Error('the connection was lost during an upload'));
  }, lost.reject);
  return {
    async store(path, content) {
      refusePath(path);
      const answered = new Promise<void>((resolve) => {
        hear = resolve;
      });
      run.stdin.write(`${content.length} ${wordOf(path)}\n`);
      if (content.length) run.stdin.write(content);
      await inTime(Promise.race([answered, lost.promise]), FILE_MILLISECONDS, 'The writing of a file');
      const [line = '', ...rest] = output.split('\n');
      output = rest.join('\n');
      if (line === 'yes') return;
      const words = line.replace(/^no /, '').slice(0, WORDS_LENGTH_MAX);
      throw new Refusal('invalid_request', `path: cannot be written there: ${words}`);
    },
    close() {
      run.stdin.end();
      inTime(run.ended, FILE_MILLISECONDS, 'The end of an upload').catch(() => run.kill());
    },
  };
}
