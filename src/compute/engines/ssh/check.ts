import type { CheckFinding } from '../../backend.ts';
import { finding, warning } from '../../finding.ts';
import { HostKeyMismatch, HostUnreachable, type PoolHost } from './host.ts';

/** A login shell that starts within this reads nothing that takes long. */
const SLOW_SHELL_MILLISECONDS = 1000;

/** Error messages of ssh2, and the remedy for each. */
const REMEDIES: [words: RegExp, what: string][] = [
  [/ENOENT|EACCES/, 'Correct identity_file, or let Purser read it'],
  [/authentication methods failed/, "Add the public half of identity_file to root's authorized_keys there"],
  [/parse privateKey/, 'identity_file must be a private key without a passphrase'],
  [
    /ECONNREFUSED|timed out|Timed out|EHOSTUNREACH|ENETUNREACH|ENOTFOUND/i,
    'Is it running, and are address and port right?',
  ],
  [/cannot be written/, 'state_directory must be one that root can write'],
];

/**
 * Checks every host of the pool: reachable, its key as pinned, root, what a tenant needs, quarantine, GPUs. On a leased host
 * nothing is started or changed.
 */
export function checkHosts(hosts: readonly PoolHost[], now: () => number): Promise<CheckFinding[]> {
  return Promise.all(hosts.map((host) => finding(`host ${host.name}`, () => checkHost(host, now))));
}

async function checkHost(host: PoolHost, now: () => number): Promise<string> {
  const ask = async (verb: string, ...args: string[]) => {
    const { code, output, fault } = await host.ask(verb, args).catch((error: Error) => {
      throw new Error(unreachable(error));
    });
    if (code !== 0) throw new Error(`It does not answer ${verb}: ${fault || code}. Can root run sh there?`);
    return output.trimEnd().split('\n');
  };
  const [state, ...faults] = await ask('check', String(host.gpus), String(now()));
  const [manager, gpus = '0', tag = '', deadline = ''] = await ask('about');

  if (state === 'quarantined')
    throw new Error(
      `It is quarantined, and is not leased: ${faults.join('; ')}. Clean it, then remove the file quarantine in its state_directory.`,
    );
  if (faults.length) throw new Error(`It is not leased: ${faults.join('; ')}.`);
  const leased = state === 'taken' ? `leased to ${tag} until ${timeOf(deadline)}, and not touched` : 'free';
  const kept =
    manager === 'systemd'
      ? 'systemd holds a tenant in a slice of its own'
      : 'there is no systemd: a tenant is held by its user id alone, and not in a control group';
  const slow = slowShell(host);
  if (slow) return warning(slow);
  return `${leased}; the host key is the pinned one, this is root there; ${gpus} GPUs answer (${host.gpus} configured); ${kept}`;
}

/** Reports the time of root's login shell where it starts slowly; undefined otherwise. */
function slowShell(host: PoolHost): string | undefined {
  const { milliseconds, isForEachLine } = host.shell();
  if (milliseconds < SLOW_SHELL_MILLISECONDS) return undefined;
  const takes = `root's login shell takes ${(milliseconds / 1000).toFixed(1)} s to start there`;
  const remedy = 'Shorten what it reads, such as ~/.bashrc';
  return isForEachLine
    ? `${takes}, and starts for each command. ${remedy}, or install OpenSSH 7.8 or newer, with which it starts once for a connection.`
    : `${takes}: each new connection waits for it. ${remedy}.`;
}

function unreachable(error: Error): string {
  const { message } = error;
  if (error instanceof HostKeyMismatch)
    return `${message}. If the host was made anew, set host_key to its new key; if not, somebody else answers at its address.`;
  const remedy = REMEDIES.find(([words]) => words.test(message))?.[1];
  if (error instanceof HostUnreachable && remedy) return `${message}. ${remedy}${remedy.endsWith('?') ? '' : '.'}`;
  return `${message}.`;
}

function timeOf(seconds: string): string {
  return /^\d{1,12}$/.test(seconds) ? new Date(Number(seconds) * 1000).toISOString().replace('.000Z', 'Z') : 'its end';
}
