import { createHash, randomBytes } from 'node:crypto';
import { Refusal } from '../../base/refusal.ts';
import { inTime, noLongerThan } from '../../net/deadline.ts';
import type { Backend, Ref } from '../backend.ts';
import { ArchiveFault, emptyFile, endOfArchive, readArchive } from './archive.ts';
import { collect } from './collect.ts';
import { createLinkListReader } from './link-list.ts';
import { firstWord, type Run, startRun } from './run.ts';
import { judgeUpload, KEPT_OUT_PATH, KILLED, MUST_NOT_LIE_THERE, quoted, RECEIVE_MARKED, refusePath } from './shell.ts';

/** Files and trees of any length, which pass through Purser as they come: never whole in its memory. */

/** The longest that a transfer may take. */
export const TRANSFER_SECONDS = 3600;
/** The memory of one transfer: what waits on its way, in either direction. */
export const TRANSFER_BYTES = 256 * 1024;
const OWN_OUTPUT_BYTES = 4096;
/** The most bytes of the list of symbolic links that are in a directory already. */
const LINKS_BYTES_MAX = 1024 * 1024;
/** The wait for a script to end, once it has all of its input or needs no more. */
const END_MILLISECONDS = 120_000;
/** The wait for a script whose input broke off to remove what it has begun. */
const CLEAN_MILLISECONDS = 10_000;
/** An archive up to this size is read whole before its answer begins, so that a failure has its reason. */
const HELD_BYTES = 64 * 1024;
const WORDS_LENGTH_MAX = 200;

/** The content of an upload as it comes. Rejects when it breaks off; nothing more is asked of it then. */
export type Content = { next(): Promise<Buffer | undefined> };

/** The received part of an upload. */
type Received = { bytes: number; sha256: string };

const noTool = (tool: string, instead: string) =>
  new Refusal('invalid_request', `The image of this resource has no \`${tool}\`, which this request needs. ${instead}`);
const WITHOUT_TAR = 'Send the files one by one, or use sftp.';
const tooLong = () => new Refusal('request_timeout', `The transfer took longer than ${TRANSFER_SECONDS} seconds.`);
const broken = () => new Error('the connection was lost during an upload');
const wordsOf = (stderr: Buffer) => (stderr.toString().trim().split('\n')[0] ?? '').slice(0, WORDS_LENGTH_MAX);

/** Counts and hashes what arrives. */
function received() {
  const hash = createHash('sha256');
  let bytes = 0;
  return {
    add(piece: Buffer) {
      hash.update(piece);
      bytes += piece.length;
    },
    all: (): Received => ({ bytes, sha256: hash.digest('hex') }),
  };
}

/** Returns what writes to a program, as fast as it reads. It does nothing once `whenDone` has resolved. */
function writerOf(run: Run, whenDone: Promise<unknown>) {
  let isDone = false;
  const orDone = noLongerThan(
    whenDone.then(() => {
      isDone = true;
    }),
  );
  return {
    isDone: () => isDone,
    orDone,
    async write(bytes: Buffer): Promise<void> {
      if (isDone || bytes.length === 0 || run.stdin.write(bytes)) return;
      const drained = Promise.withResolvers<void>();
      run.stdin.once('drain', drained.resolve);
      await orDone(drained.promise);
      run.stdin.removeListener('drain', drained.resolve);
    },
  };
}
type ProgramInput = ReturnType<typeof writerOf>;

/** Passes content to a program until its end, or until the program needs no more. */
async function feed(content: Content, writer: ProgramInput, pass: (piece: Buffer) => Promise<void>): Promise<void> {
  while (!writer.isDone()) {
    const piece = await writer.orDone(content.next());
    if (!piece) return;
    await pass(piece);
  }
}

/** Ends the input of a program, and waits for its end: longer where `isWhole`, when it has all of its input. */
async function endOf(run: Run, isWhole: boolean): Promise<number> {
  run.stdin.end();
  const milliseconds = isWhole ? END_MILLISECONDS : CLEAN_MILLISECONDS;
  try {
    return await inTime(run.ended, milliseconds, 'The end of an upload');
  } catch (error) {
    run.kill();
    throw error;
  }
}

/**
 * Writes a file of any length, whole or not at all; parents are created. `confirm` is called when all of it has come, and may
 * throw. Throws refusals for a path that cannot be written.
 */
export async function storeFile(
  backend: Backend,
  ref: Ref,
  { path, content, confirm }: { path: string; content: Content; confirm: () => void },
): Promise<Received> {
  refusePath(path);
  const mark = randomBytes(16).toString('hex');
  const text = `say ok\nset -- ${quoted(path)} ${mark} ${mark.length}\n${RECEIVE_MARKED}`;
  const run = await startRun(backend, ref, { text, input: 'fed', timeoutSeconds: TRANSFER_SECONDS });
  const done = Promise.withResolvers<void>();
  const stderr = collect(run.stderr, OWN_OUTPUT_BYTES);
  const stdout = collect(run.stdout, OWN_OUTPUT_BYTES, undefined, async () => done.resolve());
  for (const it of [stderr, stdout]) it.catch(() => {}); // `ended` rejects as well.
  run.ended.then(
    () => done.resolve(),
    () => done.resolve(),
  );
  const all = received();
  let isWhole = false;
  try {
    await firstWord(run);
    const writer = writerOf(run, done.promise);
    await feed(content, writer, (piece) => {
      all.add(piece);
      return writer.write(piece);
    });
    if (!writer.isDone()) {
      confirm();
      await writer.write(Buffer.from(mark));
      isWhole = true;
    }
  } catch (error) {
    await endOf(run, false).catch(() => {}); // Only the first fault is reported.
    throw error;
  }
  const code = await endOf(run, isWhole);
  if (code === KILLED) throw tooLong();
  judgeUpload(code, (await stderr).bytes);
  if (!isWhole) throw broken();
  return all.all();
}

/** Returns the path of a directory, without slashes at its end. Refuses one that is not plain; `.` is where commands start. */
function directoryOf(path: string): string {
  let end = path.length;
  while (end > 1 && path[end - 1] === '/') end--;
  const plain = path.slice(0, end);
  if (plain === '/') throw new Refusal('invalid_request', 'path: must be a directory below /.');
  if (plain !== '.') refusePath(plain);
  return plain.startsWith('/') ? plain : `./${plain}`;
}

/**
 * Unpacks an archive in the directory `$1`, and makes that. After the first word come the existing symbolic links, a line `//`, and
 * when tar has ended `whole` or `failed`: whole is what has the last entry, the file `$2`.
 */
const UNPACK = `command -v tar >/dev/null || { say tarless; exit 0; }
fresh=
[ -d "$1" ] || fresh=yes
mkdir -p "$1" && cd "$1" || { say closed; exit 0; }
directory=$(pwd -P)
[ -n "$fresh" ] || command -v find >/dev/null || { say findless; exit 0; }
say ok "$(id -u 2>/dev/null || echo -)" "$(id -g 2>/dev/null || echo -)" "$directory"
[ -n "$fresh" ] || find . -type l
echo //
tar xpf - >&2
code=$?
end=failed
if [ -e "$2" ] && rm -f "$2" && [ "$code" = 0 ]; then end=whole; fi
echo "$end"
cat >/dev/null`;

type Unpacked = Received & { entries: number };

/**
 * Unpacks a tar archive of any length in a directory, which is made. Its entries are checked as they come (`archive.ts`): a refusal
 * names what was written before. `take` counts memory; `confirm` is called when all of it has come.
 */
export async function storeTree(
  backend: Backend,
  ref: Ref,
  {
    path,
    content,
    confirm,
    take,
  }: { path: string; content: Content; confirm: () => void; take: (bytes: number) => boolean },
): Promise<Unpacked> {
  const directory = directoryOf(path);
  const last = `.purser-${randomBytes(12).toString('hex')}`;
  const text = `set -- ${quoted(directory)} ./${last}\n${UNPACK}`;
  const run = await startRun(backend, ref, { text, input: 'fed', timeoutSeconds: TRANSFER_SECONDS });
  const stderr = collect(run.stderr, OWN_OUTPUT_BYTES);
  stderr.catch(() => {}); // `ended` rejects as well.
  const unpacking = readUnpacking(run);
  const all = received();
  let reader: ReturnType<typeof readArchive> | undefined;
  let isWhole = false;
  try {
    const word = await firstWord(run);
    if (word === 'tarless') throw noTool('tar', WITHOUT_TAR);
    if (word === 'findless')
      throw noTool('find', 'Name a directory that does not exist yet, or send the files one by one.');
    const [, user = '', group = '', here] = /^ok (\d+|-) (\d+|-) (\/.*)$/.exec(word) ?? [];
    if (here !== undefined) {
      const isKnown = user !== '-' && group !== '-';
      const owner = isKnown ? { user: Number(user), group: Number(group) } : undefined;
      if (here === '/' || KEPT_OUT_PATH.test(here))
        throw new Refusal(
          'invalid_request',
          `path: ${here === '/' ? 'must be a directory below /.' : MUST_NOT_LIE_THERE}`,
        );
      reader = readArchive({ directory: here, owner, links: await unpacking.links, take });
      const reading = reader;
      const writer = writerOf(run, unpacking.done);
      await feed(content, writer, async (piece) => {
        all.add(piece);
        const { pieces, fault } = reading.push(piece);
        await writer.write(pieces.length === 1 ? (pieces[0] as Buffer) : Buffer.concat(pieces));
        if (fault) throw fault;
      });
      if (!writer.isDone()) {
        reading.finish();
        confirm();
        await writer.write(Buffer.concat([emptyFile(last), endOfArchive()]));
        isWhole = true;
      }
    }
  } catch (error) {
    const passed = reader?.passed();
    // What was passed on of a whole entry is unpacked: the archive is ended as it should be.
    if (passed && passed.begun === undefined) run.stdin.write(endOfArchive());
    await endOf(run, false).catch(() => {}); // Only the first fault is reported.
    if (error instanceof ArchiveFault) throw refusalOf(error, reader);
    throw error;
  }
  const code = await endOf(run, isWhole);
  const { bytes: words } = await stderr;
  if (code === KILLED) throw tooLong();
  const end = await unpacking.end;
  if (!reader) throw new Refusal('invalid_request', `path: cannot be made there: ${wordsOf(words)}`);
  if (end === 'failed' && words.length)
    throw new Refusal('invalid_request', `The archive cannot be unpacked there: ${wordsOf(words)}.`);
  if (end !== 'whole' || !isWhole) throw broken();
  return { ...all.all(), entries: reader.passed().entries };
}

function refusalOf({ message }: ArchiveFault, reader: ReturnType<typeof readArchive> | undefined): Refusal {
  const { entries = 0, last, begun } = reader?.passed() ?? {};
  const written =
    entries === 0
      ? 'Nothing was written'
      : `${entries} ${entries === 1 ? 'entry was' : 'entries were'} written, the last one ${last}`;
  const part = begun === undefined ? '' : `, and a part of ${begun}`;
  return new Refusal('invalid_request', `The archive: ${message}. ${written}${part}.`);
}

/** Reads what UNPACK prints after its first word. */
function readUnpacking(run: Run) {
  const links = Promise.withResolvers<string[]>();
  const done = Promise.withResolvers<void>();
  const list = createLinkListReader(LINKS_BYTES_MAX);
  let tail: string | undefined;
  run.stdout.on('data', (chunk: Buffer) => {
    if (tail !== undefined) {
      tail = (tail + chunk.toString('latin1')).slice(-OWN_OUTPUT_BYTES);
      done.resolve();
      return;
    }
    const listed = list.push(chunk);
    if (listed === undefined) return;
    if (listed === 'tooLong') {
      links.reject(tooManyLinks());
      return;
    }
    links.resolve(listed.names);
    tail = listed.rest;
    if (tail !== '') done.resolve();
  });
  const finish = () => {
    links.reject(broken());
    done.resolve();
  };
  links.promise.catch(() => {}); // An upload may fail before it asks.
  run.ended.then(finish, finish);
  return {
    links: links.promise,
    /** Resolves when tar has ended. */
    done: done.promise,
    end: run.ended.then(() => tail?.trim().split('\n').at(-1)),
  };
}

const tooManyLinks = () =>
  new Refusal(
    'invalid_request',
    'path: has too many symbolic links already. Name a directory that does not exist yet.',
  );

/**
 * Prints the directory `$1` as an archive, after its size in KiB. `cat` makes it a pipe: the output of a Slurm step is a terminal,
 * to which tar writes no archive. GNU's tar ends with 1 where a file changed.
 */
const PACK = `if [ ! -d "$1" ]; then
  if [ -e "$1" ] || [ -L "$1" ]; then say file; else say missing; fi
  exit 0
fi
cd "$1" 2>/dev/null && [ -r . ] || { say closed; exit 0; }
command -v tar >/dev/null || { say tarless; exit 0; }
size=$(du -sk . 2>/dev/null | { read -r size rest; echo "$size"; })
say ok "$size"
exec 4>&1
code=$({ { tar cf - .; echo "$?" >&3; } | cat >&4; } 3>&1)
if [ "$code" = 1 ]; then
  case $(tar --version 2>/dev/null) in *GNU*) code=0 ;; esac
fi
exit "$code"`;

/**
 * Reads a directory as a tar archive. `begin` is called before the first `send`. Throws refusals for a path that is no directory,
 * and for one with more than `bytesMax`: where only the archive shows that, in the middle.
 */
export async function readTree(
  backend: Backend,
  ref: Ref,
  {
    path,
    bytesMax,
    begin,
    send,
    signal,
  }: {
    path: string;
    bytesMax: number;
    begin: () => void;
    send: (piece: Buffer) => Promise<void> | undefined;
    signal: AbortSignal;
  },
): Promise<void> {
  const text = `set -- ${quoted(path.startsWith('/') ? path : `./${path}`)}\n${PACK}`;
  const run = await startRun(backend, ref, { text, timeoutSeconds: TRANSFER_SECONDS });
  const stderr = collect(run.stderr, OWN_OUTPUT_BYTES);
  stderr.catch(() => {}); // `ended` rejects as well.
  const kill = () => run.kill();
  signal.addEventListener('abort', kill);
  if (signal.aborted) kill();
  const tooMuch = () =>
    new Refusal(
      'payload_too_large',
      `path: has more than the ${bytesMax} bytes that a download may have here (the setting limits.download_bytes). Fetch its parts.`,
    );
  let held: Buffer[] | undefined = [];
  const release = (all: Buffer[]) => {
    held = undefined;
    begin();
    return send(Buffer.concat(all));
  };
  let isEnded = false;
  try {
    const [word, size] = (await firstWord(run)).split(' ');
    if (word === 'missing') throw new Refusal('not_found', 'path: there is nothing of that name on the resource.');
    if (word === 'file')
      throw new Refusal('invalid_request', 'path: is no directory. Fetch it as application/octet-stream.');
    if (word === 'closed') throw new Refusal('invalid_request', 'path: cannot be read there.');
    if (word === 'tarless') throw noTool('tar', 'Fetch the files one by one, or use sftp.');
    if (Number(size) * 1024 > bytesMax) throw tooMuch();
    let bytes = 0;
    for await (const piece of run.stdout as AsyncIterable<Buffer>) {
      bytes += piece.length;
      if (bytes > bytesMax) throw tooMuch();
      held?.push(piece);
      if (!held) await send(piece);
      else if (bytes > HELD_BYTES) await release(held);
    }
    const code = await run.ended;
    isEnded = true;
    if (code === KILLED) throw tooLong();
    if (code !== 0)
      throw new Refusal('invalid_request', `path: cannot be read whole: ${wordsOf((await stderr).bytes)}.`);
    if (held) await release(held);
  } finally {
    signal.removeEventListener('abort', kill);
    if (!isEnded) kill();
  }
}
