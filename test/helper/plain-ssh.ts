import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

/**
 * Runs a command in a lease by OpenSSH's own client, with the answer of `POST /v1/compute/ssh`. Its files are below
 * `directory`. Returns the command's stdout; throws with ssh's message.
 */
export function plainSsh(access: Record<string, any>, directory: string, ...command: string[]) {
  const key = join(directory, `key-${randomBytes(4).toString('hex')}`);
  const known = `${key}.known`;
  writeFileSync(key, access.private_key, { mode: 0o600 });
  writeFileSync(known, `[${access.host}]:${access.port} ${access.host_key}\n`);
  const options = ['-i', key, '-p', String(access.port), '-o', `UserKnownHostsFile=${known}`, '-o', 'BatchMode=yes'];
  const target = `${access.username}@${access.host}`;
  return new Promise<string>((resolve, reject) => {
    execFile('ssh', [...options, target, ...command], (error, stdout, stderr) =>
      error ? reject(new Error(`${error.message}\n${stderr}`, { cause: error })) : resolve(stdout),
    );
  });
}
