import { randomBytes } from 'node:crypto';
import { newId } from '../../base/id.ts';
import { Refusal } from '../../base/refusal.ts';
import type { Backend, OutputBudget, Ref } from '../backend.ts';
import { collect, type OutputListener } from './collect.ts';
import { become, type CommandEnvironment, enter, NO_DIRECTORY } from './command.ts';
import { firstWord, runText, startRun } from './run.ts';
import { KILL_FUNCTION, KILL_HOLDERS, quoted, refuseCommand } from './shell.ts';

/**
 * Commands in the background of a lease. All that is known of one is in a directory inside, so it outlives the connection and
 * Purser, and ends with the lease:
 *
 *   command  the requested command        started  Unix seconds
 *   keeper   the script that keeps it      start    what is run: variables, directory and command; removes itself
 *   pid      of the shell that runs that   waits    there until the machine's launcher has started the keeper
 *   log      both its streams, up to      cut      there when more came
 *            LOG_BYTES_MAX                exit     exit code and Unix seconds, when it has ended
 */

/** The most bytes of a log; what follows is read and discarded. */
export const LOG_BYTES_MAX = 64 * 1024 * 1024;
/** Processes that are kept. The oldest that have ended make room. */
export const PROCESS_COUNT_MAX = 64;
/** The most characters of a command in a record. */
const SHOWN_CHARACTERS_MAX = 1000;
const SECONDS = 30;
/** A keeper that has not begun after this time never will: its start was cut short. */
const START_SECONDS = 120;
const RECORD_BYTES_MAX = 16 * 1024;
const MOVE_BYTES = 1024 * 1024;
/** The unit of `ulimit -f` (POSIX). */
const BLOCK_BYTES = 512;

export type Process = {
  id: string;
  command: string;
  isRunning: boolean;
  /** Null while it runs, and when the shell that kept it was killed. */
  exitCode: number | null;
  startedAt: number;
  endedAt: number | null;
  logBytes: number;
  logTruncated: boolean;
  logPath: string;
};

/**
 * The file with the process id of the machine's launcher, in the home, where there is one: on SIGUSR1 it starts the waiting
 * keepers. Without one, the session of the request starts them: on other engines processes survive their session.
 */
export const LAUNCHER = '.purser-launcher';
export const PROCESSES = '.purser-processes';

/** Finds, or makes, the directory `$directory`: in the home, or where commands start, or in /tmp. */
const FIND_DIRECTORY = `directory=
for top in "\${HOME:-/}" "$PWD" /tmp; do
  top=\${top%/}/${PROCESSES}
  [ -d "$top" ] && [ ! -L "$top" ] && [ -O "$top" ] && [ -w "$top" ] && directory=$top && break
done
[ -n "$directory" ] || for top in "\${HOME:-/}" "$PWD" /tmp; do
  top=\${top%/}/${PROCESSES}
  mkdir -m 700 "$top" 2>/dev/null && directory=$top && break
done
`;

/**
 * `record DIRECTORY` prints a line of facts and the beginning of the command. A process counts as running until its shell has
 * written an exit code, or is gone, or never existed.
 */
const RECORD = `size_of() { stat -c %s "$1" 2>/dev/null || wc -c <"$1"; }
has_ended() {
  [ ! -e "$1/exit" ] || return 0
  if ! read -r keeper <"$1/pid"; then
    read -r began <"$1/started" && [ "$(($(date +%s) - began))" -gt ${START_SECONDS} ]
    return
  fi
  case $(tr '\\0' ' ' <"/proc/$keeper/cmdline") in *"$1"*) return 1 ;; esac
} 2>/dev/null
record() {
  state=running code=- ended=-
  if has_ended "$1"; then
    state=ended
    [ ! -e "$1/exit" ] || read -r code ended <"$1/exit"
  fi
  read -r started <"$1/started" || return 1
  cut=no; [ ! -e "$1/cut" ] || cut=yes
  printf '%s/%s %s %s %s %s %s %s %s/' "$token" "\${1##*/}" "$state" "$code" "$started" "$ended" "$(size_of "$1/log")" "$cut" "$1"
  head -c ${4 * SHOWN_CHARACTERS_MAX} "$1/command"
}
`;

/**
 * The script that keeps a process: `$1` is its directory, whose name is its id, which marks every process that it starts, as
 * descriptor 8 does. `ulimit -f` caps the log. `cat`, unlike `head`, writes each read at once; at the cap or on a full disk it
 * exits and the rest is discarded. The exit code is written when the content of the pipe is in the log.
 */
const KEEPER = `echo $$ >"$1/pid"
own=/proc/$$/comm; [ -r "$own" ] || own=/dev/null
size() { stat -c %s "$1/log" || wc -c <"$1/log"; }
{
  PURSER_EXEC=\${1##*/} /bin/sh "$1/start" 8<"$own" </dev/null 2>&1 &
  wait "$!"
  code=$?
  for round in 1 2 3 4 5 6 7 8 9 10; do
    before=$(size "$1")
    sleep 0.1 || sleep 1
    [ "$(size "$1")" != "$before" ] || break
  done
  echo "$code $(date +%s)" >"$1/exit.new" && mv "$1/exit.new" "$1/exit"
} | {
  (ulimit -c 0; ulimit -f ${LOG_BYTES_MAX / BLOCK_BYTES}; exec cat >"$1/log") || : >"$1/cut"
  cat >/dev/null
}`;

const REFUSALS = {
  none: () => new Refusal('not_found', 'There is no such process on this resource.'),
  full: () =>
    new Refusal(
      'lease_limit_exceeded',
      `process: at most ${PROCESS_COUNT_MAX} run at once on a resource. Kill one, or wait for its end.`,
    ),
  directory: () => new Refusal('invalid_request', 'The resource has no directory that can be written, for the log.'),
  cwd: NO_DIRECTORY,
} satisfies Record<string, () => Refusal>;

/** Refuses the errors that a text reports instead of `ok`; returns the rest of its message. */
function checked(word: string): string {
  const [first = '', rest = ''] = word.split(/ (.*)/s);
  if (first === 'ok') return rest;
  if (Object.hasOwn(REFUSALS, first)) throw REFUSALS[first as keyof typeof REFUSALS]();
  throw new Error(`the machine says what cannot be understood: ${word.slice(0, 100)}`);
}

/** Runs a text with its own mark for records, and returns them with its first word. */
async function ask(
  backend: Backend,
  ref: Ref,
  text: string,
  streamBytesMax = RECORD_BYTES_MAX,
): Promise<{ word: string; processes: Process[] }> {
  const mark = randomBytes(16).toString('hex');
  const order = { text: `token_of_records=${mark}\n${text}`, timeoutSeconds: SECONDS, streamBytesMax };
  const { word, stdout } = await runText(backend, ref, order);
  return { word: checked(word), processes: recordsIn(stdout, mark) };
}

const recordOf = (directory: string) => `(token=$token_of_records; record ${directory})`;

/** Parses records. Records that a tenant has damaged are left out. */
function recordsIn(output: Buffer, mark: string): Process[] {
  const parts = output.toString().split(`${mark}/`).slice(1);
  return parts.flatMap((part) => {
    const match =
      /^(proc_[0-9a-z]{26}) (running|ended) (\d{1,3}|-) (\d{1,10}) (\d{1,10}|-) (\d{1,15}) (yes|no) (\/.*?\/proc_[0-9a-z]{26})\/(.*)$/s.exec(
        part,
      );
    if (!match) return [];
    const [, id = '', state, code, started, ended, bytes, cut, directory, command = ''] = match;
    return {
      id,
      command: [...command].slice(0, SHOWN_CHARACTERS_MAX).join(''),
      isRunning: state === 'running',
      exitCode: code === '-' ? null : Number(code),
      startedAt: Number(started),
      endedAt: ended === '-' ? null : Number(ended),
      logBytes: Number(bytes),
      logTruncated: cut === 'yes',
      logPath: `${directory}/log`,
    };
  });
}

/** Starts a command in the background. Throws refusals for a path that is no directory and for too many processes. */
export async function startProcess(
  backend: Backend,
  ref: Ref,
  { command, ...environment }: { command: string } & CommandEnvironment,
): Promise<Process> {
  refuseCommand(command);
  const id = newId('proc');
  const start = `rm -f "$0"\n${enter(environment)} || exit 126\n${become(command, environment)}`;
  const { processes } = await ask(
    backend,
    ref,
    `${FIND_DIRECTORY}${RECORD}
[ -n "$directory" ] || { say directory; exit 0; }
set -- "$directory"/proc_*
[ -d "$1" ] || set --
kept=$#
for it; do
  [ "$kept" -ge ${PROCESS_COUNT_MAX} ] || break
  ! has_ended "$it" || { rm -rf "$it"; kept=$((kept - 1)); }
done
[ "$kept" -lt ${PROCESS_COUNT_MAX} ] || { say full; exit 0; }
(${enter(environment)}) || { say cwd; exit 0; }
it=$directory/${id}
(
  umask 077
  mkdir "$it" && : >"$it/log" && date +%s >"$it/started" && printf %s ${quoted(command)} >"$it/command" &&
    printf %s ${quoted(start)} >"$it/start" && printf %s ${quoted(KEEPER)} >"$it/keeper"
) || { rm -rf "$it"; say directory; exit 0; }
launcher=
read -r launcher 2>/dev/null <"\${HOME:-/}/${LAUNCHER}"
if [ -z "$launcher" ] || ! : >"$it/waits" || ! kill -s USR1 "$launcher" 2>/dev/null; then
  detach=; ! command -v setsid >/dev/null || detach=setsid
  $detach /bin/sh "$it/keeper" "$it" 8<&- </dev/null >/dev/null 2>&1 &
fi
say ok
${recordOf('"$it"')}`,
  );
  return theOne(processes);
}

function theOne([process]: Process[]): Process {
  if (!process) throw new Error('the machine reported nothing of the process');
  return process;
}

/** Lists the processes, the newest first. */
export async function listProcesses(backend: Backend, ref: Ref): Promise<Process[]> {
  const text = `${FIND_DIRECTORY}${RECORD}say ok\nfor it in "$directory"/proc_*; do [ ! -d "$it" ] || ${recordOf('"$it"')}; done`;
  const { processes } = await ask(backend, ref, `${text}\nexit 0`, PROCESS_COUNT_MAX * 2 * RECORD_BYTES_MAX);
  return processes.reverse();
}

/** Enters the directory of a process as `$it`. */
const ENTER_RECORD = (id: string) =>
  `${FIND_DIRECTORY}${RECORD}it=$directory/${id}\n[ -d "$it" ] || { say none; exit 0; }\n`;
const isId = (id: string) => /^proc_[0-9a-z]{26}$/.test(id);

/** Kills a process with all that it started. One that has ended is left as it is, except for the processes that it left running. */
export async function killProcess(backend: Backend, ref: Ref, id: string): Promise<Process> {
  if (!isId(id)) throw REFUSALS.none();
  const { processes } = await ask(
    backend,
    ref,
    `${ENTER_RECORD(id)}${KILL_FUNCTION}
read -r keeper <"$it/pid"
own=/proc/$keeper/comm
for round in 1 2 3; do
  ! has_ended "$it" || own=/dev/null/none
  ${KILL_HOLDERS}
  (kill_marked ${id})
done
for round in 1 2 3 4 5 6 7 8 9 10; do
  ! has_ended "$it" || break
  sleep 0.2 || sleep 1
done
say ok
${recordOf('"$it"')}`,
  );
  return theOne(processes);
}

type LogOrder = {
  id: string;
  /** The offset in bytes; below 0 it counts from the end. */
  offset: number;
  /** Follows the log until the process has ended. Otherwise at most `bytesMax` are read. */
  follow?: { timeoutSeconds: number; signal?: AbortSignal | undefined } | undefined;
  bytesMax: number;
  budget?: OutputBudget | undefined;
  /** Called once before the first piece, with the offset in bytes: as it was ordered, also below 0, if the reading ended before it began. */
  onBegin?: (offset: number) => void;
  onOutput?: OutputListener;
};

/** Reads a log. Returns its process as it was afterwards; null for a followed one whose time or signal ended the reading first. */
export async function readLog(
  backend: Backend,
  ref: Ref,
  { id, offset, follow, bytesMax, budget, onBegin, onOutput }: LogOrder,
): Promise<{ offset: number; bytes: Buffer; process: Process | null }> {
  if (!isId(id)) throw REFUSALS.none();
  const mark = randomBytes(16).toString('hex');
  const followed = `while :; do
  last=; ! has_ended "$it" || last=yes
  cat <&3 || exit 1
  [ -z "$last" ] || break
  sleep 0.2 || sleep 1
done`;
  const text = `${ENTER_RECORD(id)}[ -f "$it/log" ] || { say none; exit 0; }
exec 3<"$it/log"
size=$(size_of "$it/log") at=${offset < 0 ? `$((size - ${-offset}))` : offset}
[ "$at" -ge 0 ] || at=0
[ "$at" -lt ${MOVE_BYTES} ] || dd bs=${MOVE_BYTES} seek=$((at / ${MOVE_BYTES})) count=0 2>/dev/null >&3
[ $((at % ${MOVE_BYTES})) = 0 ] || dd bs=1 seek=$((at % ${MOVE_BYTES})) count=0 2>/dev/null >&3
say "ok $at"
${follow ? followed : `head -c ${bytesMax} <&3`}
token=${mark}; record "$it" >&2`;
  const timeoutSeconds = follow?.timeoutSeconds ?? SECONDS;
  const began = performance.now();
  const hasEnded = () =>
    follow && (follow.signal?.aborted || performance.now() - began >= follow.timeoutSeconds * 1000);
  const run = await startRun(backend, ref, { text, timeoutSeconds });
  const output = Promise.all([
    collect(run.stdout, follow ? 0 : bytesMax, budget, onOutput),
    collect(run.stderr, RECORD_BYTES_MAX),
  ]);
  output.catch(() => {}); // `ended` rejects as well.
  const kill = () => run.kill();
  follow?.signal?.addEventListener('abort', kill);
  if (follow?.signal?.aborted) kill();
  try {
    const word = await firstWord(run).catch((error) => {
      if (!hasEnded()) throw error;
    });
    const from = word === undefined ? offset : Number(checked(word));
    onBegin?.(from);
    if (word === undefined) return { offset: from, bytes: Buffer.alloc(0), process: null };
    await run.ended.catch((error) => {
      if (!follow?.signal?.aborted) throw error; // Killing breaks some connections.
    });
    const [out, err] = await output;
    if (!follow && out.truncated)
      throw new Refusal('rate_limited', 'This caller uses too much memory. Retry when some requests are done.', {
        retryAfterSeconds: 2,
      });
    const [process] = recordsIn(err.bytes, mark);
    if (!process && !follow) throw new Error('the machine reported nothing of the process');
    return { offset: from, bytes: out.bytes, process: process ?? null };
  } finally {
    follow?.signal?.removeEventListener('abort', kill);
  }
}
