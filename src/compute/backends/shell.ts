import { Refusal } from '../../refusal.ts';

/**
 * Runs `$3` with a limit of `$2` seconds. Everything it starts inherits the marker `$1` in its environment, whatever
 * session or group it makes for itself; at the limit all that carry it are killed. The guard lives inside the machine, so
 * the limit holds while Purser is down too.
 */
export const LIMITED = `export PURSER_EXEC="$1"
/bin/sh -c "$3" & child=$!
(
  sleep "$2" & nap=$!
  trap 'kill "$nap"; exit' TERM
  wait "$nap"
  trap '' TERM
  for round in 1 2 3; do
    for entry in /proc/[0-9]*; do
      grep -qs "PURSER_EXEC=$1" "$entry/environ" && kill -KILL "\${entry#/proc/}"
    done
  done
) </dev/null >/dev/null 2>&1 & guard=$!
wait "$child"; code=$?
kill "$guard" 2>/dev/null
wait "$guard" 2>/dev/null
exit "$code"`;

/** Kills all that carry the marker `$1`. */
export const KILL_MARKED = `for round in 1 2 3; do
  for entry in /proc/[0-9]*; do
    grep -qs "PURSER_EXEC=$1" "$entry/environ" && kill -KILL "\${entry#/proc/}"
  done
done`;

export const IS_DIRECTORY = 21;
export const CUT_SHORT = 22;

/**
 * Writes standard input to the path `$1`: parents made, replaced whole or not at all. Exits 21 for a directory, 22 where
 * fewer than `$2` bytes came: a line that breaks looks like the end of the input.
 */
export const RECEIVE = `set -e
if [ -d "$1" ]; then exit ${IS_DIRECTORY}; fi
case "$1" in */*) mkdir -p "\${1%/*}" ;; esac
fresh="$1.purser-$$"
trap 'rm -f "$fresh"' EXIT
cat > "$fresh"
if [ -n "$2" ] && [ "$(wc -c < "$fresh")" -ne "$2" ]; then exit ${CUT_SHORT}; fi
mv -f "$fresh" "$1"`;

const PATH_CHARACTERS_MAX = 4096;
const KEPT_OUT = /^\/(proc|sys|dev|run\/purser)(\/|$)/;

/** Refuses what is not the plain absolute path of a file: traversal, devices, control characters. */
export function refusePath(path: string): void {
  const fault = !path.startsWith('/')
    ? 'must be absolute'
    : path.endsWith('/')
      ? 'must name a file'
      : path.split('/').some((part) => part === '..' || part === '.')
        ? 'must not contain . or ..'
        : /\p{Cc}/u.test(path)
          ? 'must not contain control characters'
          : path.length > PATH_CHARACTERS_MAX
            ? 'is too long'
            : KEPT_OUT.test(path.replace(/\/+/g, '/'))
              ? 'must not lie in /proc, /sys, /dev or /run/purser'
              : undefined;
  if (fault) throw new Refusal('invalid_request', `path: ${fault}.`);
}

/** One argument of a program has at most 128 KiB (Linux, MAX_ARG_STRLEN). */
const COMMAND_BYTES_MAX = 120 * 1024;

/** Refuses a command that no shell could be given. */
export function refuseCommand(command: string): void {
  if (Buffer.byteLength(command) > COMMAND_BYTES_MAX)
    throw new Refusal('invalid_request', `command: has more than ${COMMAND_BYTES_MAX} bytes.`);
}
