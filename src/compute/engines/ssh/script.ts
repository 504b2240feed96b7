import { hash } from 'node:crypto';

/** Exit codes of the verbs below, other than 0. */
export const POOL_EXIT = { occupied: 10, quarantined: 11, unfit: 12, busy: 13, broken: 14, gone: 20 } as const;

/** The first user id for tenants: above those of people, services, subordinate ids and systemd's own users. */
const FIRST_UID = 1_900_000_000;
/** The real user id of what kills a tenant's processes: nobody has it. */
const KILLER_UID = FIRST_UID - 1;
/** A host whose clock is wrong would end its tenants too soon or too late. */
const SKEW_SECONDS_MAX = 120;
const DISK_LEAST_KIB = 1024 * 1024;
/** Rounds of killing a tenant's processes, 0.2 s apart, before its end fails: a killed process takes a while to die. */
const END_ROUNDS = 75;

/**
 * Purser's side of a pool host: `sh FILE POOL VERB …`, run as root. It needs Debian's essential packages, `passwd` and util-linux.
 * POOL is a directory of root's own with
 * - `tenant/`: the one tenant, made by a rename, so that it exists with all its fields or not at all: `tag`, `user`, `uid`, `created`,
 *   `boot`, `deadline` by Purser's clock, `skew`, the seconds that the host's own is ahead of that; `ready` when its user is,
 *   `ending` from when it has to go;
 * - `quarantine`: why the host may not be used; only the operator removes it;
 * - `next_uid`, and `last`: how the last tenant's end went;
 * - `lock`, over every change of `tenant`;
 * - `gate`, held shared by every process about to become the tenant's user;
 * - `end.lock`, held by the process that is ending the tenant;
 * - `second-…`, the keys of the second sshd (`second-sshd.ts`).
 */
export const POOL_SCRIPT = `set -u
umask 077
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
export PATH LC_ALL
pool=$1 verb=$2
shift 2
tenant=$pool/tenant

say() { echo "$*" >&2; }
# Every command of a tenant waits for these few: they start no process.
read_line() { { IFS= read -r value < "$1"; } 2>/dev/null; } # into $value
is_here() { [ -n "$1" ] && read_line "$tenant/user" && [ "$value" = "$1" ]; }
is_open() { [ -e "$tenant/ready" ] && [ ! -e "$tenant/ending" ] && read_line "$tenant/boot" && [ "$value" = "$boot" ]; }
read_line /proc/sys/kernel/random/boot_id
boot=$value

field() { read_line "$tenant/$1" && echo "$value"; }
put() { printf '%s\\n' "$2" > "$1.new" && sync "$1.new" && mv -f "$1.new" "$1"; }
# From now on nobody becomes the tenant's user. On a disk that the tenant has filled, a file can be renamed, and none made.
shut() { [ -e "$tenant/ending" ] || mv "$tenant/ready" "$tenant/ending" 2>/dev/null || true > "$tenant/ending"; }
is_number() { case $1 in ''|*[!0-9]*) return 1 ;; esac; }
is_tenants_uid() { is_number "$1" && [ "$1" -ge 1000 ]; } # Never root's, whatever a file says.
# Whether the deadline has come, by the clock of Purser, which sold the time. A tenant of an earlier version has no skew.
is_over() {
  deadline=$(field deadline) skew=$(field skew)
  ! is_number "$deadline" || [ "$(date +%s)" -ge $((deadline + \${skew:-0})) ]
}
lives() { is_open && getent passwd "$(field user)" >/dev/null; }

# Files that name processes of user id $1, zombies left out. Each is read once: state and user are of the same moment,
# also while a zombie is being reaped.
processes_of() {
  grep -HsE '^(State|Uid):' /proc/[0-9]*/status | awk -v uid="$1" '
    $1 ~ /:State:$/ { lives = $2 !~ /^[ZX]/; next }
    lives { for (i = 2; i <= NF; i++) if ($i == uid) { sub(/:Uid:$/, "", $1); print $1; next } }'
}

# One signal to all of user id $1 (named $2): no fork slips through, and nobody else is reached. What has the user's own id, the
# user may stop or kill before it sends the signal. Perl sends it with that effective id alone, which nobody but root may signal.
kill_all_of() {
  if command -v perl >/dev/null; then
    perl -e 'my ($own, $uid) = @ARGV; $uid >= 1000 or exit 1; $< = $own; $> = $uid; $< == $own && $> == $uid and kill KILL => -1' \\
      ${KILLER_UID} "$1" 2>/dev/null
  else
    timeout -s KILL 5 setpriv --reuid "$1" --regid "$1" --clear-groups --no-new-privs /bin/sh -c \\
      '[ "$(id -u)" = "$1" ] && [ "$1" -ge 1000 ] && kill -s KILL -- -1' purser "$1" 2>/dev/null
  fi
  if [ -d /run/systemd/system ]; then systemctl kill --signal=KILL "$2.slice" 2>/dev/null; fi
}

# Where anybody may write: the usual places, and every mounted directory that is open to all. One a line.
open_directories() {
  {
    for directory in /tmp /var/tmp /dev/shm /dev/mqueue /run/lock /var/lock /var/mail /var/spool /var/crash; do
      if [ -d "$directory" ]; then echo "$directory"; fi
    done
    cut -d ' ' -f 2 /proc/mounts | grep -vE '^/(proc|sys)(/|$)' | while read -r mounted; do printf '%b\\0' "$mounted"; done |
      xargs -0 sh -c 'find "$@" -maxdepth 0 -type d -perm -0002' purser 2>/dev/null
  } | sort -u
}

remove_files_of() {
  echo "$directories" | while read -r directory; do
    find "$directory/" -xdev -depth -uid "$1" -delete 2>/dev/null
  done
  for kind in shm:-m msg:-q sem:-s; do
    awk -v id="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "uid" || $i == "cuid") own[i]; next }
      { for (i in own) if ($i == id) { print $2; next } }' "/proc/sysvipc/\${kind%:*}" 2>/dev/null |
      while read -r key; do ipcrm "\${kind#*:}" "$key"; done
  done
  rm -f "/var/lib/systemd/linger/$2"
  umount "/run/user/$1" 2>/dev/null; rm -rf --one-file-system "/run/user/$1" 2>/dev/null
  rm -rf --one-file-system -- "/home/$2" 2>/dev/null
}

# Says what is left of user id $1 named $2 in files; nothing when all is clean.
files_left_of() {
  echo "$directories" | while read -r directory; do
    find "$directory/" -xdev -uid "$1" -print -quit 2>/dev/null
  done
  if [ -e "/home/$2" ]; then echo "/home/$2"; fi
}

# The deadline is kept by a process of its own, which needs neither Purser nor a connection.
arm() {
  if flock -n "$tenant/watch" true 2>/dev/null; then
    if [ -d /run/systemd/system ]; then
      systemd-run --quiet --collect --unit="purser-watch-$1" --property=OOMScoreAdjust=-1000 \\
        /bin/sh "$0" "$pool" watch "$1" 7>&- 8>&- 9>&-
    else
      setsid /bin/sh "$0" "$pool" watch "$1" </dev/null >/dev/null 2>&1 7>&- 8>&- 9>&- &
    fi
  fi
}
is_armed() {
  for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    if ! flock -n "$tenant/watch" true; then return 0; fi
    sleep 0.1
  done
  return 1
}

faults() {
  for tool in setpriv flock useradd groupadd userdel groupdel getent find xargs grep awk setsid stat sync ipcrm id; do
    command -v "$tool" >/dev/null || echo "the program $tool is missing"
  done
  if [ ! -d /run/systemd/system ] && ! command -v perl >/dev/null; then echo 'the program perl is missing'; fi
  if [ "$(id -u)" != 0 ]; then echo 'this is not root'; fi
  skew=$(($(date +%s) - $2))
  if [ "$skew" -gt ${SKEW_SECONDS_MAX} ] || [ "$skew" -lt -${SKEW_SECONDS_MAX} ]; then echo "the clock differs from Purser's by $skew s"; fi
  for directory in "$pool" /home /tmp; do
    free=$(df -Pk "$directory" 2>/dev/null | awk 'END { print $4 }')
    if ! is_number "$free" || [ "$free" -lt ${DISK_LEAST_KIB} ]; then echo "less than 1 GiB is free in $directory"; fi
  done
  if [ ! -d "$tenant" ] && grep -qF ":purser $pool:" /etc/passwd; then echo 'a user of an earlier tenant is left'; fi
  if command -v nvidia-smi >/dev/null || [ "$1" -gt 0 ]; then
    seen=$(timeout 20 nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
    if [ "$seen" -lt "$1" ] || [ "$seen" -eq 0 ]; then echo "nvidia-smi shows $seen GPUs"; fi
    if [ ! -d "$tenant" ] && [ -n "$(timeout 20 nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null)" ]; then
      echo 'a process that is no tenant uses a GPU'
    fi
  fi
}

case $verb in
  # GPUS NOW: the state of the host, then its faults, one a line.
  check)
    if [ -e "$pool/quarantine" ]; then echo quarantined; cat "$pool/quarantine"
    elif [ -d "$tenant" ]; then echo taken
    else echo free; fi
    faults "$1" "$2"
    ;;

  # What doctor tells of the host: its service manager, its GPUs, its tenant's tag and deadline, one a line.
  about)
    if [ -d /run/systemd/system ]; then echo systemd; else echo none; fi
    timeout 20 nvidia-smi -L 2>/dev/null | grep -c '^GPU '
    for it in tag deadline; do field "$it" || echo; done
    ;;

  # TAG USER DEADLINE GPUS NOW: makes the tenant, or says why not.
  claim)
    tag=$1 user=$2 deadline=$3 gpus=$4 now=$5 ahead=$(($(date +%s) - $5))
    exec 9>>"$pool/lock"
    flock -w 20 9 || exit ${POOL_EXIT.busy}
    if [ -e "$pool/quarantine" ]; then exit ${POOL_EXIT.quarantined}; fi
    if [ -d "$tenant" ]; then exit ${POOL_EXIT.occupied}; fi
    said=$(faults "$gpus" "$now")
    if [ -n "$said" ]; then say "$said"; exit ${POOL_EXIT.unfit}; fi
    uid=$(cat "$pool/next_uid" 2>/dev/null || echo ${FIRST_UID})
    is_tenants_uid "$uid" || { say "$pool/next_uid is not a user id"; exit ${POOL_EXIT.unfit}; }
    while getent passwd "$uid" >/dev/null || getent group "$uid" >/dev/null; do uid=$((uid + 1)); done
    # Spent before it is used: an id is never given twice.
    put "$pool/next_uid" $((uid + 1)) || exit ${POOL_EXIT.unfit}
    : >> "$pool/gate" >> "$pool/end.lock" # A tenant may leave no room to make them later.
    rm -rf "$pool/fresh"
    mkdir "$pool/fresh" && cd "$pool/fresh" || exit ${POOL_EXIT.unfit}
    for it in "tag:$tag" "user:$user" "uid:$uid" "created:$(date +%s)" "boot:$boot" "deadline:$deadline" \\
      "skew:$ahead"; do
      put "\${it%%:*}" "\${it#*:}" || exit ${POOL_EXIT.unfit}
    done
    : > watch
    cd /
    mv -T "$pool/fresh" "$tenant" || exit ${POOL_EXIT.unfit}
    sync "$pool" || exit ${POOL_EXIT.broken}
    arm "$user"
    groupadd -g "$uid" "$user" &&
      useradd -M -N -l -u "$uid" -g "$uid" -d "/home/$user" -s /usr/sbin/nologin -p '*' -c "purser $pool" \\
        -K UID_MAX=4294967294 -K SUB_UID_COUNT=0 -K SUB_GID_COUNT=0 "$user" &&
      mkdir -p -m 0755 /home && mkdir -m 0700 "/home/$user" && chown "$uid:$uid" "/home/$user" &&
      is_armed && : > "$tenant/ready" || exit ${POOL_EXIT.broken}
    ;;

  # The tenant: its tag, user, creation, deadline and state, one a line; nothing when there is none.
  list)
    exec 9>>"$pool/lock"
    flock -s -w 20 9 || exit ${POOL_EXIT.busy}
    if [ ! -d "$tenant" ]; then exit 0; fi
    cat "$tenant/tag" "$tenant/user" "$tenant/created" "$tenant/deadline" || exit 1
    if lives; then echo running; else echo ended; fi
    arm "$(field user)" # For a host that was started anew, or a watch that died.
    ;;

  # USER DEADLINE NOW
  extend)
    ahead=$(($(date +%s) - $3))
    exec 9>>"$pool/lock"
    flock -w 20 9 || exit ${POOL_EXIT.busy}
    is_here "$1" && lives || exit ${POOL_EXIT.gone}
    put "$tenant/skew" "$ahead" && put "$tenant/deadline" "$2" || exit 1
    arm "$1"
    is_armed
    ;;

  # USER LINE: a line of shell as the tenant, without any privilege to gain.
  run)
    exec 9<"$pool/gate"
    flock -s -w 20 9 || exit ${POOL_EXIT.busy}
    is_here "$1" && is_open || { say 'purser: the lease has ended'; exit ${POOL_EXIT.gone}; }
    read_line "$tenant/uid" && is_tenants_uid "$value" || exit 1
    uid=$value user=$1 line=$2 home=/home/$1 shell=/bin/sh
    if [ -x /bin/bash ]; then shell=/bin/bash; fi
    if [ -t 0 ]; then chown "$uid" "$(tty)"; fi
    cd "$home" 2>/dev/null || cd /
    umask 022
    # With systemd the tenant is in a slice of its own, and not in the session of the root that came in.
    if [ -d /run/systemd/system ]; then set -- systemd-run --quiet --scope --collect --slice="$user.slice"; else set --; fi
    # Half of what the host can have, so that a tenant cannot keep root from ending it; a limit that is lower stays.
    most=32768
    read_line /proc/sys/kernel/threads-max && most=$value
    read_line /proc/sys/kernel/pid_max && [ "$value" -lt "$most" ] && most=$value
    ulimit -u $((most / 2)) 2>/dev/null || ulimit -p $((most / 2)) 2>/dev/null # dash calls it -p.
    exec "$@" setpriv --reuid "$uid" --regid "$uid" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \\
      env -i HOME="$home" USER="$user" LOGNAME="$user" SHELL="$shell" LANG=C.UTF-8 \${TERM+TERM="$TERM"} \\
      PATH=/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games \\
      /bin/sh -c "exec 9<&-
$line"
    ;;

  # USER: ends the tenant. Done when nothing of it runs and its user is gone; what cannot be cleaned quarantines the host.
  end)
    user=$1
    exec 8>>"$pool/end.lock"
    flock -w 20 8 || { say 'the tenant is being ended already'; exit ${POOL_EXIT.busy}; }
    exec 9>>"$pool/lock" # A claim that is still at work is waited for.
    flock -w 20 9 || { say 'the host is busy'; exit ${POOL_EXIT.busy}; }
    is_here "$user" || exit 0
    uid=$(field uid)
    is_tenants_uid "$uid" || { say "the tenant's user id is not one"; exit 1; }
    shut || exit 1
    # Whoever is about to become the user holds the gate; once it is free, nobody begins any more.
    exec 9>>"$pool/gate"
    round=0
    until kill_all_of "$uid" "$user"; flock -n 9 && [ -z "$(processes_of "$uid")" ]; do
      round=$((round + 1))
      if [ "$round" -gt ${END_ROUNDS} ]; then say "processes of $user cannot be killed: $(processes_of "$uid" | head -n 5 | tr '\\n' ' ')"; exit 1; fi
      sleep 0.2
    done
    exec 9>&-
    if [ -d /run/systemd/system ]; then systemctl stop "$user.slice" 2>/dev/null; fi
    directories=$(open_directories)
    remove_files_of "$uid" "$user" 2>/dev/null
    if getent passwd "$user" >/dev/null; then userdel -f "$user" >/dev/null 2>&1; fi
    if getent group "$user" >/dev/null; then groupdel "$user" >/dev/null 2>&1; fi
    if getent passwd "$user" >/dev/null || getent group "$user" >/dev/null; then say "the user $user cannot be removed"; exit 1; fi
    # Whatever a daemon of the host began for the user meanwhile, cron say, cannot be begun again.
    round=0
    until kill_all_of "$uid" "$user"; [ -z "$(processes_of "$uid")" ]; do
      round=$((round + 1))
      if [ "$round" -gt ${END_ROUNDS} ]; then say "something begins processes of $user again and again"; exit 1; fi
      sleep 0.2
    done
    left=$(files_left_of "$uid" "$user" | head -n 3 | tr '\\n' ' ')
    if [ -n "$left" ]; then
      put "$pool/quarantine" "not clean after $user: $left" || exit 1
      put "$pool/last" "$user left $left"
    else put "$pool/last" "$user clean"; fi
    exec 9>>"$pool/lock"
    flock -w 20 9 || exit ${POOL_EXIT.busy}
    rm -rf "$pool/gone"
    mv -T "$tenant" "$pool/gone" && sync "$pool" && rm -rf "$pool/gone"
    ;;

  # USER: waits for the deadline, also while Purser is down, and ends the tenant.
  watch)
    trap '' HUP
    exec 7>>"$tenant/watch"
    flock -w 1 7 || exit 0
    echo -1000 2>/dev/null > "/proc/$$/oom_score_adj"
    while is_here "$1"; do
      if [ -e "$tenant/ending" ] || is_over; then
        # Decided under the lock: a deadline that was moved in this moment is kept.
        exec 9>>"$pool/lock"
        flock 9
        if is_here "$1" && is_over; then shut; fi
        exec 9>&-
        if is_here "$1" && [ -e "$tenant/ending" ]; then /bin/sh "$0" "$pool" end "$1" >/dev/null 2>&1 7>&- || sleep 5; fi
      fi
      sleep 1 7>&-
    done
    ;;
esac
`;

/** The script's name contains its hash, so that a running script is never overwritten. */
export const POOL_SCRIPT_NAME = `pool-${hash('sha256', POOL_SCRIPT).slice(0, 16)}.sh`;
