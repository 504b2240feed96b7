import { startProcess } from '../../compute/machine/process.ts';
import type { HttpApp } from '../endpoint.ts';
import { callGuest } from '../routes/guest-call.ts';
import type { Running } from './envd.ts';
import { openVariables } from './environment.ts';
import { guestUncertain } from './errors.ts';

/** The command that a template starts in each sandbox, such as a kernel's server. */

const START_SECONDS = 30;
/** The time that a create waits for the command. */
const WAIT_SECONDS = 20;

/** The mark that the first start leaves, and the id that its processes have in their environment. */
const SHARED = `PURSER_START=\${HOME:-/}/.purser-template`;

/** Runs the command in the first of these scripts alone: a create that is taken over must not start it again. */
const onceOnly = (command: string) => `${SHARED}
mkdir "$PURSER_START" 2>/dev/null || [ ! -d "$PURSER_START" ] || exit 0
echo "$PURSER_EXEC" >"$PURSER_START/new" && mv "$PURSER_START/new" "$PURSER_START/id"
(
${command}
)
code=$?
: >"$PURSER_START/ended"
exit "$code"`;

/**
 * Ends when the command has ended, or one of its processes listens on a port. Others may listen beside them: a machine is not always
 * the whole of what its commands see.
 */
const READY = `${SHARED}
sockets() {
  cat /proc/net/tcp /proc/net/tcp6 | while read -r _ _ _ state _ _ _ _ _ inode _; do
    [ "$state" != 0A ] || echo "socket:[$inode]"
  done
} 2>/dev/null
listens() {
  read -r id <"$PURSER_START/id" || return 1
  listening=$(sockets)
  for environ in $(grep -ls "PURSER_EXEC=$id" /proc/[0-9]*/environ); do
    for link in "\${environ%environ}"fd/*; do
      socket=$(readlink "$link")
      case $socket in socket:*) case $listening in *"$socket"*) return 0 ;; esac ;; esac
    done
  done
  return 1
} 2>/dev/null
until [ -e "$PURSER_START/ended" ] || listens; do sleep 0.1 || sleep 1; done`;

/**
 * Starts the command of a template, once in the life of a sandbox. Waits until it ends or listens on a port, at most 20 s; it may
 * run for as long as the sandbox.
 */
export async function startTemplate(
  app: HttpApp,
  { wallet, resource, sandbox, backend, ref }: Running,
  command: string,
): Promise<void> {
  const env = openVariables(app, wallet, sandbox.environment);
  const order = { command: READY, timeoutSeconds: WAIT_SECONDS, streamBytesMax: 0 };
  const start = async () => {
    await startProcess(backend, ref, { command: onceOnly(command), env });
    await backend.guest.exec(ref, order);
  };
  await callGuest(app, resource, START_SECONDS + WAIT_SECONDS, start).catch((error) => {
    throw guestUncertain(error);
  });
}
