import { constants } from 'node:os';
import { Refusal } from '../../base/refusal.ts';

/** Quotes a text as one word of a POSIX shell. */
export const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;

/**
 * `find_marked MARKER` sets `entries` to the entry of every process that has `PURSER_EXEC=MARKER` in its environment, by one grep
 * over all of /proc: a process for each entry would take seconds on a busy machine. It falls back where the image has a grep
 * without -z or none, or more entries than fit one argument list. It changes the directory to /proc.
 */
const FIND_FUNCTION = `find_marked() {
  entries=
  cd /proc || return
  if command -v grep >/dev/null; then
    entries=$(PURSER_EXEC= grep -zlsF "PURSER_EXEC=$1" [0-9]*/environ 2>/dev/null)
    [ -n "$entries" ] || entries=$(PURSER_EXEC= grep -lsF "PURSER_EXEC=$1" [0-9]*/environ 2>/dev/null)
    [ "$?" -lt 126 ] || for digit in 1 2 3 4 5 6 7 8 9; do
      entries="$entries $(PURSER_EXEC= grep -zlsF "PURSER_EXEC=$1" "$digit"*/environ 2>/dev/null)"
    done
  else
    for entry in [0-9]*/environ; do
      while IFS= read -r text || [ -n "$text" ]; do
        case $text in *"PURSER_EXEC=$1"*) entries="$entries $entry"; break ;; esac
      done 2>/dev/null <"$entry"
    done
  fi
}`;

/** `kill_marked MARKER` kills the processes that `find_marked` finds. */
export const KILL_FUNCTION = `${FIND_FUNCTION}
kill_marked() {
  find_marked "$1"
  for entry in $entries; do kill -KILL "\${entry%/environ}" 2>/dev/null; done
}`;

/** Kills every process whose descriptor 8 is the file `$own`, without a fork. */
export const KILL_HOLDERS = `for entry in /proc/[0-9]*/fd/8; do
  [ "$entry" -ef "$own" ] && entry=\${entry#/proc/} && kill -KILL "\${entry%/fd/8}" 2>/dev/null
done`;

/**
 * Runs `$3` with a limit of `$2` seconds. Everything it starts inherits two marks, whatever session or group it makes for itself:
 * `$1` in its environment, and descriptor 8, a file of this very process. At the limit every process with either mark is killed,
 * first those with the descriptor: that takes no fork, so it works where no more processes can be made. Only a process that clears
 * its environment and closes its inherited descriptors survives, until its lease ends. The guard lives inside the machine, so the
 * limit holds while Purser is down too.
 *
 * A command may end at once, so the guard may be stopped at any of its steps; its `sleep` is killed by a signal that a process
 * about to be `sleep` cannot lose.
 */
export const LIMITED = `${KILL_FUNCTION}
own=/proc/$$/comm; [ -r "$own" ] || own=/dev/null
export PURSER_EXEC="$1"
/bin/sh -c "$3" 8<"$own" & child=$!
(
  nap= stopped=
  stop() { [ -z "$nap" ] || { kill -KILL "$nap"; exit; }; stopped=1; }
  trap stop TERM
  sleep "$2" & nap=$!
  [ -z "$stopped" ] || stop
  wait "$nap"
  trap '' TERM
  for round in 1 2 3; do
    ${KILL_HOLDERS}
    kill_marked "$1"
  done
) </dev/null >/dev/null 2>&1 & guard=$!
wait "$child" 2>/dev/null; code=$?
kill "$guard" 2>/dev/null
wait "$guard" 2>/dev/null
exit "$code"`;

/**
 * Kills every process with the marker `$1` in its environment. A busy engine may start a session's program after its client has
 * gone, so while none is found the search is repeated, for ten seconds.
 */
export const KILL_MARKED = `${KILL_FUNCTION}
for second in 1 2 3 4 5 6 7 8 9 10; do
  kill_marked "$1"
  [ -z "$entries" ] || break
  sleep 1
done
for round in 1 2; do kill_marked "$1"; done`;

/** Exits with 1 if no process has the marker `$1` in its environment. */
export const IS_MARKED = `${FIND_FUNCTION}
find_marked "$1"; set -- $entries; [ "$#" -gt 0 ]`;

const IS_DIRECTORY = 21;
const CUT_SHORT = 22;
const KEPT_OUT = 23;

/**
 * Writes standard input to the path `$1`, relative to the directory that a command starts in. Makes parents, replaces the file
 * whole or not at all, and keeps the mode of an earlier one. Exits with one of the codes above if the path is a directory or not
 * writable, or if `check` finds that `$fresh` is not whole (a broken connection looks like the end of the input). `atEnd` runs
 * before the rest of the input is discarded.
 */
const receive = (check: string, atEnd = '') => `set -e
fresh=
# An engine may put its own words for an input that nobody reads in place of the reason.
trap '[ -z "$fresh" ] || rm -f "$fresh"; ${atEnd}cat >/dev/null' EXIT
case "$1" in
  /*) path=$1 ;;
  *) here=$(pwd -P); path=\${here%/}/$1 ;;
esac
case "$path" in /proc/*|/sys/*|/dev/*|/run/purser/*) exit ${KEPT_OUT} ;; esac
if [ -d "$path" ]; then exit ${IS_DIRECTORY}; fi
folder=\${path%/*}
[ -z "$folder" ] || mkdir -p "$folder"
fresh="$path.purser-$$"
cat > "$fresh"
${check}
if [ -f "$path" ]; then
  if mode=$(stat -Lc %a "$path" 2>/dev/null); then chmod "$mode" "$fresh"
  elif [ -x "$path" ]; then chmod +x "$fresh"; fi
fi
mv -f "$fresh" "$path"
fresh=`;

/** Receives a file of `$2` bytes. */
export const RECEIVE = receive(`if [ -n "$2" ] && [ "$(wc -c < "$fresh")" -ne "$2" ]; then exit ${CUT_SHORT}; fi`);

/**
 * Receives a file of any length, behind which the input has the `$3` bytes of the mark `$2`. Prints a line when it reads no
 * more of it.
 */
export const RECEIVE_MARKED = receive(
  `if [ "$(tail -c "$3" "$fresh")" != "$2" ]; then exit ${CUT_SHORT}; fi
size=$(wc -c < "$fresh")
dd of="$fresh" bs=1 seek="$((size - $3))" count=0 2>/dev/null`,
  'echo over; ',
);

/** Interprets RECEIVE's exit code. Refuses errors that the tenant can correct; throws when the connection broke. */
export function judgeUpload(exitCode: number, stderr: Buffer): void {
  if (exitCode === 0) return;
  if (exitCode === CUT_SHORT) throw new Error('the connection was lost during an upload');
  const fault =
    exitCode === IS_DIRECTORY
      ? 'is a directory.'
      : exitCode === KEPT_OUT
        ? MUST_NOT_LIE_THERE
        : `cannot be written there: ${stderr.toString().trim().slice(0, 200)}`;
  throw new Refusal('invalid_request', `path: ${fault}`);
}

/** Returns a signal's name without `SIG`, as in SSH (RFC 4254, section 6.10); Node and ssh2's client have it with the prefix. */
export const nameOfSignal = (signal: string) => signal.replace(/^SIG/, '');

/** Returns a shell's exit code for a command that signal n ended: 128 + n. */
export const codeOfSignal = (name: string) => 128 + (constants.signals[`SIG${name}` as NodeJS.Signals] ?? 0);

/** The exit code of a command that SIGKILL ended. */
export const KILLED = codeOfSignal('KILL');

const PATH_CHARACTERS_MAX = 4096;
export const KEPT_OUT_PATH = /^\/(proc|sys|dev|run\/purser)(\/|$)/;
export const MUST_NOT_LIE_THERE = 'must not lie in /proc, /sys, /dev or /run/purser.';

/** Refuses a path that is not plain: traversal, devices, control characters. */
export function refusePath(path: string): void {
  const fault = path.endsWith('/')
    ? 'must name a file.'
    : path.split('/').some((part) => part === '..' || part === '.')
      ? 'must not contain . or ..'
      : /\p{Cc}/u.test(path)
        ? 'must not contain control characters.'
        : path.length > PATH_CHARACTERS_MAX
          ? 'is too long.'
          : KEPT_OUT_PATH.test(path.replace(/\/+/g, '/'))
            ? MUST_NOT_LIE_THERE
            : undefined;
  if (fault) throw new Refusal('invalid_request', `path: ${fault}`);
}

/** One argument of a program has at most 128 KiB (Linux, MAX_ARG_STRLEN). */
const COMMAND_BYTES_MAX = 120 * 1024;

/** Refuses a command that cannot be passed to a shell. */
export function refuseCommand(command: string): void {
  if (Buffer.byteLength(command) > COMMAND_BYTES_MAX)
    throw new Refusal('invalid_request', `command: has more than ${COMMAND_BYTES_MAX} bytes.`);
}
