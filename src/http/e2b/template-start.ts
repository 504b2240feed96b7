import { startProcess } from '../../compute/machine/process.ts';
import type { HttpApp } from '../endpoint.ts';
import { callGuest } from '../routes/guest-call.ts';
import type { Running } from './envd.ts';
import { openVariables } from './environment.ts';
import { uncertainInside } from './errors.ts';

/** The command that a template starts in each sandbox, such as a kernel's server. */

const START_SECONDS = 30;
/** The time that a create waits for the command. */
const WAIT_SECONDS = 20;

/** `listening` prints the addresses on which programs listen, as the kernel's tables have them. */
const SHARED = `started=\${HOME:-/}/.purser-template
listening() {
  cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ address _ state _; do
    [ "$state" != 0A ] || echo "$address"
  done
}
`;

/** Runs the command in the first of these scripts alone: a create that is taken over must not start it again. */
const onceOnly = (command: string) => `${SHARED}
mkdir "$started" 2>/dev/null || [ ! -d "$started" ] || exit 0
listening >"$started/new" && mv "$started/new" "$started/before"
(
${command}
)
code=$?
: >"$started/ended"
exit "$code"`;

/** Ends when the command has ended, or when something listens that did not before. */
const READY = `${SHARED}
until [ -e "$started/ended" ]; do
  [ ! -e "$started/before" ] || [ "$(listening)" = "$(cat "$started/before")" ] || exit 0
  sleep 0.1 || sleep 1
done`;

/**
 * Starts the command of a template, once in the life of a sandbox, and waits until it has ended or listens on a port. It may go on
 * for as long as the sandbox; after 20 s it is not waited for.
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
    throw uncertainInside(error);
  });
}
