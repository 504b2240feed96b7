import { randomBytes } from 'node:crypto';
import { Refusal } from '../../base/refusal.ts';
import { turnWhenDue } from '../../base/turn.ts';
import { inTime } from '../../net/deadline.ts';
import { collectPieces } from '../../net/pieces.ts';
import type { Backend, OutputBudget, Ref } from '../backend.ts';
import { fromHome } from './attached.ts';
import { beginRun, firstWord, runText, startRun, TooLong } from './run.ts';

/** Files and directories of a machine by their paths, each call by one script. Paths are absolute or from the home. */

const SECONDS = 60;
const OUTPUT_BYTES_MAX = 8 * 1024 * 1024;
/** The most bytes of what is seen of a watched directory: all of it is compared at each change. */
const WATCH_BYTES_MAX = 4 * 1024 * 1024;
const WORDS_LENGTH_MAX = 200;
/** The name that `stat` prints for a user or group without one. */
const NAMELESS = 'UNKNOWN';
/** Directories deeper than this are not listed at once. */
const DEPTH_MAX = 64;

/** Prints the facts of paths, and where links lead; both are also run by `find`, which knows no function. */
const FACTS = 'stat -c "$mark/%f %s %Y %u:%g:%U:%G/%n"';
const LINKS = 'for link; do printf "%s=%s\\000%s" "$mark" "$link" "$(readlink "$link")"; done';

export type Entry = {
  path: string;
  /** The mode with the bits of the type, as `stat` has it. */
  mode: number;
  size: number;
  owner: string;
  group: string;
  /** Unix seconds. */
  modified: number;
  /** The target of a symbolic link. */
  target?: string;
};

/**
 * Sets `$it` to the path. `print` prints entries: the token, a slash, the facts, a slash and the path; `links` the token, an equals
 * sign, the path, NUL and the target. A token and an exclamation mark end complete output.
 */
const opening = (token: string, path: string) => `export LC_ALL=C
cd "\${HOME:-/}" 2>/dev/null || cd /
it=${fromHome(path)}
mark=${token}
absolute() { case $it in /*) ;; *) here=$(pwd); it=\${here%/}/\${it#./} ;; esac; }
exists() { [ -e "$1" ] || [ -L "$1" ]; }
print() { ${FACTS} "$@" 2>/dev/null; }
links() { ${LINKS}; }
shown() { print "$1"; [ ! -L "$1" ] || links "$1"; printf '%s!' "$mark"; }
absolute
case $it in ?*/) it=\${it%/} ;; esac
`;

const REFUSALS: Record<string, (words: string) => Refusal> = {
  none: () => new Refusal('not_found', 'path: there is nothing of that name in the sandbox.'),
  file: () => new Refusal('invalid_request', 'path: is no directory.'),
  directory: () => new Refusal('invalid_request', 'path: is a directory.'),
  root: () => new Refusal('invalid_request', 'path: must not be /.'),
  denied: (words) =>
    new Refusal('invalid_request', `path: ${words.slice(0, WORDS_LENGTH_MAX) || 'cannot be changed.'}`),
};

const tooLong = (cause: TooLong) =>
  new Refusal(
    'operation_uncertain',
    `path: this took more than ${SECONDS} s in the sandbox and was stopped; what it was to change may be changed in part.`,
    { cause },
  );

/** Returns the first word of a script that is one of `accepted`. Throws the refusal that another one stands for. */
function acceptedWord(word: string, accepted: readonly string[] = ['ok']): string {
  const [first = '', words = ''] = word.split(/ (.*)/s);
  if (accepted.includes(first)) return first;
  const refuse = REFUSALS[first];
  throw refuse ? refuse(words) : new Error('the machine says what cannot be understood');
}

/** Yields what follows each token of an output, with turns for others. An output may have a hundred thousand of them. */
async function* partsIn(output: Buffer, token: string): AsyncGenerator<string> {
  for (let at = output.indexOf(token); at >= 0; ) {
    const start = at + token.length;
    at = output.indexOf(token, start);
    yield output.toString('utf8', start, at < 0 ? output.length : at);
    await turnWhenDue();
  }
}

/** Returns the targets of the links of an output, by their paths. Throws where it was cut. */
async function targetsIn(output: Buffer, token: string): Promise<Map<string, string>> {
  const targets = new Map<string, string>();
  let isWhole = false;
  for await (const part of partsIn(output, token)) {
    if (part.startsWith('=')) {
      const [path = '', target = ''] = part.slice(1).split('\0');
      targets.set(path, target);
    } else if (part.startsWith('!')) isWhole = true;
  }
  if (!isWhole)
    throw new Refusal('invalid_request', 'path: has more than can be listed at once. List a part of it, or less deep.');
  return targets;
}

/** Yields the entries of an output. They are read as they are needed: all of them take several times its memory. */
async function* entriesIn(output: Buffer, token: string, targets: ReadonlyMap<string, string>): AsyncGenerator<Entry> {
  for await (const part of partsIn(output, token)) {
    const match = /^\/([0-9a-f]+) (\d+) (-?\d+) (\d+):(\d+):([^:/]*):([^/]*)\/(.*)\n$/s.exec(part);
    if (!match) continue;
    const [, mode = '', size, modified, uid = '', gid = '', user = '', name = '', path = ''] = match;
    const [owner, group] = [user === NAMELESS ? uid : user, name === NAMELESS ? gid : name];
    const target = targets.get(path);
    yield {
      ...{ path, owner, group, size: Number(size), modified: Number(modified) },
      mode: Number.parseInt(mode, 16),
      ...(target === undefined ? {} : { target }),
    };
  }
}

/** Runs a script on a path. Returns its first word, and what it printed of entries where that is `ok`, as far as `budget` goes. */
async function ask(
  backend: Backend,
  ref: Ref,
  path: string,
  script: string,
  accepted: readonly string[] = ['ok'],
  budget?: OutputBudget,
): Promise<{ word: string; entries: AsyncIterable<Entry> }> {
  refuseOddPath(path);
  const token = randomBytes(16).toString('hex');
  const order = { text: `${opening(token, path)}${script}\nexit 0`, timeoutSeconds: SECONDS };
  const running = runText(backend, ref, { ...order, streamBytesMax: OUTPUT_BYTES_MAX, budget });
  const { word, stdout } = await running.catch((error) => {
    throw error instanceof TooLong ? tooLong(error) : error;
  });
  const first = acceptedWord(word, accepted);
  const targets = first === 'ok' ? await targetsIn(stdout, token) : new Map();
  return { word: first, entries: entriesIn(stdout, token, targets) };
}

/** Throws `invalid_request` for a path that no file has. */
function refuseOddPath(path: string): void {
  if (!path || path.includes('\0') || path.length > 4096)
    throw new Refusal('invalid_request', 'path: must be 1 to 4096 characters without NUL.');
}

async function theOne(entries: AsyncIterable<Entry>): Promise<Entry> {
  for await (const entry of entries) return entry;
  throw REFUSALS.none?.('') as Refusal;
}

/** Describes what is at a path; a link is not followed. Throws `not_found`. */
export async function statEntry(backend: Backend, ref: Ref, path: string): Promise<Entry> {
  const { entries } = await ask(backend, ref, path, 'exists "$it" || { say none; exit 0; }\nsay ok\nshown "$it"');
  return theOne(entries);
}

/** Lists a directory down to a depth; links are not followed. Throws `not_found`, and `invalid_request` for a file. */
export async function* listEntries(
  backend: Backend,
  ref: Ref,
  path: string,
  depth: number,
  budget: OutputBudget,
): AsyncGenerator<Entry> {
  const deep = `find "$it/" -mindepth 1 -maxdepth ${Math.min(Math.max(depth, 1), DEPTH_MAX)}`;
  const { entries } = await ask(
    backend,
    ref,
    path,
    `exists "$it" || { say none; exit 0; }
[ -d "$it" ] || { say file; exit 0; }
command -v find >/dev/null || { say denied the image has no find; exit 0; }
say ok
${deep} -exec ${FACTS} {} + 2>/dev/null
${deep} -type l -exec sh -c 'mark=$1; shift; ${LINKS}' sh "$mark" {} + 2>/dev/null
printf '%s!' "$mark"`,
    ['ok'],
    budget,
  );
  for await (const it of entries) yield { ...it, path: it.path.replace(/\/{2,}/g, '/') };
}

/** Makes a directory with its parents. Returns undefined where it is there already. */
export async function makeDirectory(backend: Backend, ref: Ref, path: string): Promise<Entry | undefined> {
  const { word, entries } = await ask(
    backend,
    ref,
    path,
    `[ ! -d "$it" ] || { say there; exit 0; }
! exists "$it" || { say file; exit 0; }
words=$(mkdir -p "$it" 2>&1) || { say denied "$words"; exit 0; }
say ok
shown "$it"`,
    ['ok', 'there'],
  );
  return word === 'there' ? undefined : theOne(entries);
}

/** Moves what is at a path to another, over a file or an empty directory that is there. */
export async function moveEntry(backend: Backend, ref: Ref, from: string, to: string): Promise<Entry> {
  refuseOddPath(to);
  const { entries } = await ask(
    backend,
    ref,
    from,
    `from=$it
exists "$from" || { say none; exit 0; }
it=${fromHome(to)}
absolute
mkdir -p "\${it%/*}/" 2>/dev/null
gone=
if [ -d "$it" ]; then words=$(rmdir "$it" 2>&1) && gone=yes || { say denied "$words"; exit 0; }; fi
words=$(mv -f "$from" "$it" 2>&1) || { [ -z "$gone" ] || mkdir "$it"; say denied "$words"; exit 0; }
say ok
shown "$it"`,
  );
  return theOne(entries);
}

/** Removes a file, or a directory with all that is in it. Nothing there is no error. */
export async function removeEntry(backend: Backend, ref: Ref, path: string): Promise<void> {
  await ask(
    backend,
    ref,
    path,
    `case $it in /|//*|/.|/..) say root; exit 0 ;; esac
words=$(rm -rf "$it" 2>&1) || { say denied "$words"; exit 0; }
say ok
printf '%s!' "$mark"`,
  );
}

/** Returns the home of the machine's user, where paths begin. */
export async function homeOf(backend: Backend, ref: Ref): Promise<string> {
  const order = { text: `say "\${HOME:-/}"`, timeoutSeconds: SECONDS, streamBytesMax: 0 };
  const { word } = await runText(backend, ref, order);
  if (!word.startsWith('/')) throw new Error('the machine says what cannot be understood');
  return word;
}

/** Opens a file for reading. Throws `not_found`, and `invalid_request` for what is no file. */
export async function openFile(backend: Backend, ref: Ref, path: string, timeoutSeconds: number) {
  refuseOddPath(path);
  const text = `${opening('-', path)}exists "$it" || { say none; exit 0; }
[ ! -d "$it" ] || { say directory; exit 0; }
[ -f "$it" ] && [ -r "$it" ] || { say denied cannot be read.; exit 0; }
say ok
exec cat <"$it"`;
  const { run, word } = await beginRun(backend, ref, { text, timeoutSeconds }, SECONDS * 1000);
  try {
    acceptedWord(word);
  } catch (error) {
    run.kill();
    throw error;
  }
  return run;
}

/**
 * Watches a directory: `see` gets its entries and the bytes of them, first as they are, then when a look twice a second finds others.
 * Resolves when the watch has ended.
 */
export async function watchEntries(
  backend: Backend,
  ref: Ref,
  { path, isRecursive, seconds, signal }: { path: string; isRecursive: boolean; seconds: number; signal: AbortSignal },
  see: (entries: Map<string, string>, bytes: number) => Promise<void> | undefined,
): Promise<void> {
  refuseOddPath(path);
  const token = randomBytes(8).toString('hex'); // Short, as each entry has it.
  const deep = isRecursive ? '' : ' -maxdepth 1';
  const text = `${opening(token, path)}exists "$it" || { say none; exit 0; }
[ -d "$it" ] || { say file; exit 0; }
cd "$it" && command -v find >/dev/null || { say denied cannot be watched.; exit 0; }
say ok
last=
round=0
while :; do
  now=$(find . -mindepth 1${deep} -exec stat -c "$mark/%i %f %s %y/%n" {} + 2>/dev/null; printf '%s!' "$mark")
  # Now and then without a change: a reader that is gone shows when something is written.
  if [ "$now" != "$last" ] || [ "$round" -eq 60 ]; then
    printf '%s\\n' "$now" || exit 0
    last=$now
    round=0
  fi
  round=$((round + 1))
  sleep 0.5 || sleep 1
done`;
  const run = await startRun(backend, ref, { text, timeoutSeconds: seconds });
  const kill = () => run.kill();
  signal.addEventListener('abort', kill);
  if (signal.aborted) kill();
  try {
    run.stderr.resume();
    acceptedWord(await inTime(firstWord(run), SECONDS * 1000, 'The beginning of a call'));
    const end = `${token}!\n`;
    const waiting = collectPieces();
    let tail: Buffer = Buffer.alloc(0);
    for await (const piece of run.stdout as AsyncIterable<Buffer>) {
      waiting.add(piece);
      if (waiting.length() > WATCH_BYTES_MAX)
        throw new Refusal('invalid_request', 'path: has too many files to be watched.');
      tail = Buffer.concat([tail.subarray(-end.length), piece]);
      if (!tail.includes(end)) continue;
      const texts = waiting.whole().toString().split(end);
      waiting.clear();
      tail = Buffer.from(texts.pop() as string);
      waiting.add(tail);
      for (const it of texts) await see(await snapshotOf(it, token), it.length);
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  } finally {
    signal.removeEventListener('abort', kill);
    kill();
  }
}

/** Returns the facts of files by their paths from the directory. */
async function snapshotOf(output: string, token: string): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (const it of output.split(`${token}/`).slice(1)) {
    const slash = it.indexOf('/');
    found.set(it.slice(slash + '/./'.length, -1), it.slice(0, slash));
    await turnWhenDue();
  }
  return found;
}
