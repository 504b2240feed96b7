/**
 * The script that executes sftp requests in a machine: POSIX sh, and the `TOOLS` of coreutils or busybox. It reads one request per
 * line, `token verb word…`. Each answer ends with the token, the exit code and a newline, which flushes line buffers on the way,
 * and standard error with the token where a request failed, and after `read`. `close` has no answer. Requests are never evaluated:
 * words are data with unsafe bytes in octal. Only a descriptor's digit is used in `eval`, because a redirection takes no variable
 * there.
 *
 * Open files are descriptors 3 to 8, so that a transfer continues with its file when that is renamed. Requests come one at a time,
 * so a tool cannot read another request's input ahead.
 */

const TOOLS = 'cat chmod chown dd head ln mkdir mv readlink rm rmdir stat touch';

/** The descriptors of open files in the script. */
export const DESCRIPTORS = [3, 4, 5, 6, 7, 8] as const;
export const MOVE_BYTES = 1024 * 1024;
export const READ_BYTES = 64 * 1024;
/** `several` prints at most this much of a file. */
export const SMALL_BYTES = 64 * 1024;

export const SFTP_SCRIPT = `export LC_ALL=C
exec 9<&0 </dev/null
mask=$(umask)
facts='%f %s %u %g %X %Y %h:%U:%G'

say() { printf '%s\\n' "$1" >&2; return 1; }
exists() { [ -e "$1" ] || [ -L "$1" ]; }

# The bytes of a word. The point keeps newlines at its end.
plain() {
  plain=$1
  case $plain in *\\\\*) plain=$(printf '%b.' "$plain"); plain=\${plain%.} ;; esac
}
pair() { plain "$1"; first=$plain; plain "$2"; }

# A path, or a descriptor as a path.
target() { case $1 in [3-8]) plain=/proc/self/fd/$1 ;; *) plain "$1" ;; esac; }

# Opens descriptor $1 on the path $3.
attach() {
  case $2 in
    read) eval "command exec $1<\\"\\$3\\"" ;;
    update) eval "command exec $1<>\\"\\$3\\"" ;;
    append) eval "command exec $1>>\\"\\$3\\"" ;;
    empty) eval "command exec $1>\\"\\$3\\"" ;;
  esac
}

# Leaves descriptor $1 where it is (here), or moves it from there (on), or from the start after it was opened anew (read,
# update), by $3 MiB and $4 bytes to $5.
move() {
  case $2 in
    here) return 0 ;;
    on) ;;
    *) attach "$1" "$2" "/proc/self/fd/$1" || return 1 ;;
  esac
  [ "$3" = 0 ] || dd bs=${MOVE_BYTES} seek="$3" count=0 >&"$1" || return 1
  [ "$4" = 0 ] || dd bs=1 seek="$4" count=0 >&"$1" || return 1
  at "$1" "$5"
}
# Whether descriptor $1 is at $2, as far as the system tells.
at() {
  { read -r name position < "/proc/self/fdinfo/$1"; } 2>/dev/null || return 0
  case $name$position in pos:"$2" | [!p]*) return 0 ;; esac
  say "the file is at $position instead of $2"
}

hello() {
  for tool in ${TOOLS}; do
    command -v "$tool" >/dev/null || say "this machine has no $tool" || return 1
  done
  printf '%s/%s %s' "$token" "$mask" "$(pwd)"
}

# Opens descriptor $1 for $2 (read, write, update, append), and says "empty" for a file that is made or emptied; $3 whether it may, must or may not (no) be made, $4 whether
# it is emptied (yes), $5 the umask with which it is made, $6 its path, $7 its mode where that umask does not give it.
open() {
  plain "$6"
  fresh=
  if [ -e "$plain" ]; then
    [ "$3" != must ] || say 'File exists' || return 1
    [ -f "$plain" ] || say 'Not a regular file' || return 1
  elif [ "$3" = no ]; then
    stat -L "$plain" >/dev/null || return 1
  else
    fresh=yes
  fi
  [ -z "$fresh" ] || [ "$5" = - ] || umask "$5"
  opened=0
  if [ "$3" = must ] || [ "$4" = yes ]; then
    [ "$3" != must ] || set -C
    attach "$1" empty "$plain" || opened=1
    set +C
    [ $opened = 1 ] || [ "$2" = write ] || attach "$1" "$2" "$plain" || opened=1
  elif [ "$2" = write ]; then
    attach "$1" update "$plain" || opened=1
  else
    attach "$1" "$2" "$plain" || opened=1
  fi
  umask "$mask"
  [ $opened = 0 ] || return 1
  [ -z "$fresh" ] || [ "$7" = - ] || chmod "$7" "$plain" || :
  [ -z "$fresh" ] && [ "$4" = no ] || said=empty
}

# Writes $6 bytes of the input; afterwards the descriptor is at $7.
write() {
  move "$1" "$2" "$3" "$4" "$5" && head -c "$6" <&9 >&"$1" && { [ "$7" = - ] || at "$1" "$7"; } && return 0
  written=no
  return 1
}

# Opens as open does, and writes the next $8 bytes of the input at the start.
fill() {
  open "$@" && write "$1" here 0 0 0 "$8" "$8" && return 0
  written=no
  return 1
}

# Prints the files of the directory $1 whose names are the next $2 lines, each below a line with its path, as head does.
several() (
  plain "$1"
  directory=$plain
  left=$2
  set --
  while [ "$left" -gt 0 ] && read -r name <&9; do
    left=$((left - 1))
    plain "$name"
    [ ! -f "$directory/$plain" ] || set -- "$@" "$directory/$plain"
  done
  [ $# -eq 0 ] || head -v -c ${SMALL_BYTES} "$@" 2>/dev/null | dd ibs=4096 obs=${READ_BYTES} 2>/dev/null
  exit 0
)

# Each entry is the token and a slash, its facts, a slash and its name. At most $2 names are looked at, of all without it.
list() (
  plain "$1"
  left=$2
  if ! cd "$plain" 2>/dev/null || [ ! -r . ]; then
    [ -e "$plain" ] || say 'No such file or directory' || exit 1
    [ -d "$plain" ] || say 'Not a directory' || exit 1
    say 'Permission denied' || exit 1
  fi
  set --
  for name in . .. .[!.]* ..?* *; do
    [ "$left" != 0 ] || break
    left=\${left:+$((left - 1))}
    set -- "$@" "./$name"
    [ $# -lt 128 ] || { stat -c "$token/$facts/%n" "$@" 2>/dev/null; set --; }
  done
  [ $# -eq 0 ] || stat -c "$token/$facts/%n" "$@" 2>/dev/null
  exit 0
)

# What is changed of $1: size, mode, owner, access and modification time; - is left alone.
change() {
  target "$1"
  if [ "$2" != - ]; then
    size=$(stat -L -c %s "$plain") || return 1
    # OpenSSH sets the size after every upload; a file that is read-only by now cannot be opened anew for that.
    [ "$size" = "$2" ] || dd of="$plain" bs=1 seek="$2" count=0 || return 1
  fi
  [ "$3" = - ] || chmod "$3" "$plain" || return 1
  if [ "$5" != - ]; then
    # An older busybox sets both times or none.
    { touch -c -a -d "@$5" "$plain" && touch -c -m -d "@$6" "$plain"; } 2>/dev/null ||
      touch -c -d "@$6" "$plain" || return 1
    [ -e "$plain" ] || stat -L "$plain" >/dev/null || return 1
  fi
  [ "$4" = - ] || chown "$4" "$plain"
}

# With $3 = replace as rename(2), else never over something that is there.
rename() {
  pair "$1" "$2"
  if [ "$3" != replace ]; then
    ! exists "$plain" || say 'File exists' || return 1
    mv "$first" "$plain"
  elif [ -d "$plain" ]; then
    mv -f -T "$first" "$plain" 2>/dev/null && return 0
    # The one of busybox looks where a link leads.
    [ ! -L "$plain" ] || ! exists "$first" || rm "$plain" || return 1
    mv -f -T "$first" "$plain"
  else
    mv -f "$first" "$plain"
  fi
}

# ln $3 as it is said, never into a directory that is there.
link() {
  pair "$1" "$2"
  ! exists "$plain" || say 'File exists' || return 1
  if [ "$3" = symbolic ]; then ln -s -- "$first" "$plain"; else ln "$first" "$plain"; fi
}

follow() {
  plain "$1"
  exists "$plain" || { stat "$plain" >/dev/null; return 1; }
  [ -L "$plain" ] || say 'Invalid argument' || return 1
  readlink -n "$plain"
}

real() {
  plain "$1"
  readlink -f "$plain" || say 'No such file or directory'
}

while read -r token verb a b c d e f g h <&9; do
  written=
  said=
  case $verb in
    hello) hello ;;
    stat) target "$a"; stat -L -c "$facts" "$plain" ;;
    lstat) plain "$a"; stat -c "$facts" "$plain" ;;
    list) list "$a" "$b" ;;
    open) open "$a" "$b" "$c" "$d" "$e" "$f" "$g" ;;
    fill) fill "$a" "$b" "$c" "$d" "$e" "$f" "$g" "$h" ;;
    several) several "$a" "$b" ;;
    read) move "$a" "$b" "$c" "$d" "$e" && dd bs=${READ_BYTES} count="$f" <&"$a" ;;
    write) write "$a" "$b" "$c" "$d" "$e" "$f" "$g" ;;
    sync) target "$a"; sync "$plain" ;;
    close) eval "exec $a<&-"; continue ;;
    change) change "$a" "$b" "$c" "$d" "$e" "$f" ;;
    remove) plain "$a"; rm "$plain" ;;
    mkdir) plain "$a"; if [ "$b" = - ]; then mkdir "$plain"; else mkdir -m "$b" "$plain"; fi ;;
    rmdir) plain "$a"; rmdir "$plain" ;;
    rename) rename "$a" "$b" "$c" ;;
    link) link "$a" "$b" "$c" ;;
    follow) follow "$a" ;;
    real) real "$a" ;;
    space) target "$a"; stat -f -c '%s %S %b %f %a %c %d %l' "$plain" ;;
    *) say "unknown: $verb" ;;
  esac
  code=$?
  [ "$code" = 0 ] && [ "$verb" != read ] || printf '%s\\n' "$token" >&2
  printf '%s%s %s\\n' "$said" "$token" "$code"
  # What was not taken still stands in the input, up to a line that is the token.
  [ -z "$written" ] || while read -r line <&9 && [ "$line" != "$token" ]; do :; done
done`;
