import { hash } from 'node:crypto';
import ssh2, { type Client } from 'ssh2';
import { openChannel } from '../../kit/channel.ts';
import { connectThrough } from '../../kit/connect.ts';
import { quoted } from '../../machine/shell.ts';
import { POOL_SCRIPT, POOL_SCRIPT_NAME } from './script.ts';

/** Root's login shell may take this long to start. */
const START_MILLISECONDS = 45_000;

/**
 * The settings of the second sshd that are not the defaults. `SHLVL=1` keeps bash from reading ~/.bashrc, which it does only in an
 * outermost shell. PAM is off, since the first sshd has asked it. The modes of the directory of the keys are not examined: only
 * root can write there.
 */
const SETTINGS = [
  'SetEnv=SHLVL=1',
  'UsePAM=no',
  'AuthenticationMethods=publickey',
  'PermitRootLogin=prohibit-password',
  'PermitUserRC=no',
  'StrictModes=no',
];

/**
 * Returns a line that writes the pool script, which comes on standard input, whole or not at all. It runs on every new connection:
 * the host may have been reinstalled in the meantime. A host that has it already needs no room for it, which a tenant may have used up.
 */
export function installLine(pool: string): string {
  const [directory, file, size] = [quoted(pool), quoted(`${pool}/${POOL_SCRIPT_NAME}`), Buffer.byteLength(POOL_SCRIPT)];
  const take = `dd bs=${size} count=1 iflag=fullblock 2>/dev/null`;
  return `set -e; umask 077; mkdir -p ${directory}
    if echo ${quoted(`${hash('sha256', POOL_SCRIPT)}  ${pool}/${POOL_SCRIPT_NAME}`)} | sha256sum -c >/dev/null 2>&1; then ${take} > /dev/null
    else
      ${take} > ${file}.$$
      test "$(wc -c < ${file}.$$)" -eq ${size} && mv -f ${file}.$$ ${file}
    fi`;
}

/**
 * Writes the pool script as `installLine` does, starts a second sshd on that channel, and returns a connection to it, which ends
 * with the first. sshd starts root's login shell for each line, and bash then reads ~/.bashrc, which may take seconds; the second
 * sshd prevents that. Undefined where it cannot be started: without OpenSSH 7.8 or newer.
 */
export async function startSecondSshd(
  first: Client,
  pool: string,
  login: { username: string; privateKey: string },
): Promise<Client | undefined> {
  const key = ssh2.utils.parseKey(login.privateKey);
  if (key instanceof Error) throw key;
  const shown = `${key.type} ${key.getPublicSSH().toString('base64')}`;
  const [hostKey, keys] = [`${pool}/second-host-key`, `${pool}/second-keys-${hash('sha256', shown).slice(0, 16)}`];
  const options = [...SETTINGS, `AuthorizedKeysFile=${keys}`].map((it) => `-o ${quoted(it)}`).join(' ');
  const line = `${installLine(pool)}
    if ! [ -e ${quoted(hostKey)} ]; then
      rm -f ${quoted(hostKey)}.$$; ssh-keygen -q -t ed25519 -N '' -f ${quoted(hostKey)}.$$ </dev/null >&2
      mv -f ${quoted(hostKey)}.$$ ${quoted(hostKey)}; rm -f ${quoted(hostKey)}.$$.pub
    fi
    echo ${quoted(shown)} > ${quoted(keys)}.$$; mv -f ${quoted(keys)}.$$ ${quoted(keys)}
    PATH=$PATH:/usr/sbin:/sbin; exec "$(command -v sshd)" -i -f /dev/null -h ${quoted(hostKey)} ${options}`;
  const { channel, close } = await openChannel(first, `exec /bin/sh -c ${quoted(line)}`, {
    milliseconds: START_MILLISECONDS,
  });
  channel.stderr.resume();
  channel.write(POOL_SCRIPT);
  try {
    // Its key proves nothing that the first has not proved.
    const second = await connectThrough(channel, login, () => true, START_MILLISECONDS);
    second.once('close', () => first.end());
    return second;
  } catch {
    close();
    return undefined;
  }
}
