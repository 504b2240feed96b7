import assert from 'node:assert/strict';
import { quoted } from '../../machine/shell.ts';

/** The directory in which a rented machine keeps its deadline; uploads into it are refused. */
const DIRECTORY = '/run/purser';
const ONSTART_CHARACTERS_MAX = 4096; // Vast's limit, arguments included.

/**
 * The start script of a rented machine: a dead man's switch. Once the deadline in its file has passed, it destroys its own rental
 * with the key that Vast gives each container for this. If that keeps failing, it ends all processes, so that only the disk is paid
 * for. The tenant is root there: this guards against costs while Purser is down, and is no security boundary. A restart keeps the
 * deadline.
 */
export function onstart(baseUrl: string, deadline: number): string {
  const script = `touch ~/.no_auto_tmux
mkdir -p ${DIRECTORY}
[ -s ${DIRECTORY}/deadline ] || echo ${deadline} > ${DIRECTORY}/deadline
cat > ${DIRECTORY}/switch <<'END'
while read -r deadline < ${DIRECTORY}/deadline && [ "$(date +%s)" -lt "$deadline" ]; do sleep 1; done
[ -n "$CONTAINER_API_KEY" ] || export $(tr '\\0' '\\n' < /proc/1/environ | grep -E '^CONTAINER_(ID|API_KEY)=')
export PURSER_URL=${quoted(baseUrl)}/api/v0/instances/$CONTAINER_ID/
bearer="Authorization: Bearer $CONTAINER_API_KEY"
round=0
while :; do
  curl -fsS -m 30 -X DELETE -H "$bearer" "$PURSER_URL" ||
  wget -q -T 30 -O - --method=DELETE --header="$bearer" "$PURSER_URL" ||
  python3 -c 'import os, urllib.request as u
u.urlopen(u.Request(os.environ["PURSER_URL"], method="DELETE", headers={"Authorization": "Bearer " + os.environ["CONTAINER_API_KEY"]}), timeout=30)'
  sleep 10
  round=$((round + 1))
  [ $round -ge 6 ] && kill -KILL -1
done
END
setsid nohup sh ${DIRECTORY}/switch < /dev/null > /dev/null 2>&1 &
`;
  assert(script.length <= ONSTART_CHARACTERS_MAX, 'base_url is bounded by its schema');
  return script;
}

/** Returns a line of shell that sets the deadline and prints the one in force. */
export function setDeadline(deadline: number): string {
  const file = `${DIRECTORY}/deadline`;
  return `mkdir -p ${DIRECTORY} && echo ${deadline} > ${file}.new && mv -f ${file}.new ${file} && cat ${file}`;
}

/** A line of shell that prints the machine's deadline. */
export const SHOW_DEADLINE = `cat ${DIRECTORY}/deadline`;
