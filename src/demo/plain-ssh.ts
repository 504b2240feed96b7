import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { PATH } from '../compute/engines/local/kill.ts';

/** The response of `POST /v1/compute/ssh`. */
type SshAccess = { host: string; port: number; username: string; private_key: string; host_key: string };

const REACH_SECONDS = 20;

/**
 * Runs a command in a lease by this machine's own ssh client, with both keys in files of `directory`. Returns its stdout, or its
 * stderr if that is empty. Undefined without a client that this user can run.
 */
export async function runBySsh(
  access: SshAccess,
  command: string,
  directory: string,
  signal: AbortSignal,
): Promise<string | undefined> {
  if (!hasName()) return undefined;
  const [key, known] = [join(directory, 'lease-key'), join(directory, 'lease-host')];
  writeFileSync(key, access.private_key, { mode: 0o600 });
  writeFileSync(known, `[${access.host}]:${access.port} ${access.host_key}\n`);
  const options = {
    IdentitiesOnly: 'yes',
    BatchMode: 'yes',
    StrictHostKeyChecking: 'yes',
    UserKnownHostsFile: known,
    ConnectTimeout: REACH_SECONDS,
  };
  const args = ['-F', 'none', '-i', key, '-p', String(access.port)];
  for (const [name, value] of Object.entries(options)) args.push('-o', `${name}=${value}`);
  const child = spawn('ssh', [...args, `${access.username}@${access.host}`, command], {
    cwd: directory,
    env: { PATH, HOME: directory },
    stdio: ['ignore', 'pipe', 'pipe'],
    signal: AbortSignal.any([signal, AbortSignal.timeout(2 * REACH_SECONDS * 1000)]),
  });
  const begun = new Promise<boolean>((resolve, reject) => {
    child.once('spawn', () => resolve(true));
    child.once('error', (error: NodeJS.ErrnoException) => (error.code === 'ENOENT' ? resolve(false) : reject(error)));
  });
  if (!(await begun)) return undefined;
  const [stdout, stderr] = await Promise.all([text(child.stdout), text(child.stderr)]);
  return stdout || stderr;
}

/** Returns whether this user has a name: OpenSSH's client does not run without one. */
function hasName(): boolean {
  try {
    return userInfo().username !== '';
  } catch {
    return false;
  }
}
