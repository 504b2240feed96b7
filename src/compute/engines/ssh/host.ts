import { hash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { Client } from 'ssh2';
import { type Channels, channelsOf, NeverSent } from '../../kit/channel.ts';
import { connectAgain, connectSsh, type SshAddress } from '../../kit/connect.ts';
import { pinHostKey } from '../../kit/pin.ts';
import { runOnChannel, type Within } from '../../kit/ssh-program.ts';
import { quoted } from '../../machine/shell.ts';
import { keepConnections } from './connections.ts';
import { POOL_SCRIPT, POOL_SCRIPT_NAME } from './script.ts';
import { installLine, startSecondSshd } from './second-sshd.ts';
import type { SshSettings } from './settings.ts';

const CALL_MILLISECONDS = 45_000; // A verb waits at most 20 s for a lock, and nvidia-smi has its own limits.
/** A host without a second sshd may have been given one, or the first was lost in the middle. */
const SECOND_AGAIN_MILLISECONDS = 10 * 60_000;
const ANSWER_BYTES_MAX = 64 * 1024;

/** The host cannot be used, and received nothing of the request. */
export class HostUnreachable extends NeverSent {}
/** The host key differs: another machine answers there, or the host was reinstalled. Only the operator can know which. */
export class HostKeyMismatch extends HostUnreachable {}

type HostAnswer = { code: number; output: string; fault: string };

/** A host of the operator's own. */
export type PoolHost = {
  /** `address:port`. */
  name: string;
  /** A hash of its host key and state directory: if either changes, its tenant would not be found. */
  identity: string;
  chip: string;
  gpus: number;
  /** Runs lines as root, over kept connections. Throws HostUnreachable where `Channels` throws NeverSent. */
  channels: Channels;
  /**
   * Runs one verb of the pool script. Throws HostUnreachable if the host received nothing, another Error if the line
   * broke.
   */
  ask(verb: string, args: string[], milliseconds?: number): Promise<HostAnswer>;
  /** Wraps a line of shell so that it runs as the tenant's user. */
  within(user: string): Within;
  /** Returns how long root's login shell took for the newest connection, and whether it starts for each line as well. */
  shell(): { milliseconds: number; isForEachLine: boolean };
  /** Closes the connections. */
  close(): void;
};

export function createPoolHost(settings: SshSettings['hosts'][number]): PoolHost {
  const { address, port, user, host_key: pinned, state_directory: pool } = settings;
  const name = `${address}:${port}`;
  const [, keyBlob = ''] = pinned.split(' ');
  const script = `${pool}/${POOL_SCRIPT_NAME}`;
  const line = (verb: string, args: string[]) =>
    ['exec /bin/sh', ...[script, pool, verb, ...args].map((it) => quoted(it))].join(' ');
  const installed = installLine(pool);
  /** Once the host has failed to start a second sshd, none is tried before this time; each command then starts root's login shell. */
  let noSecondUntil = 0;
  const hasNoSecond = () => performance.now() < noSecondUntil;
  let shellMilliseconds = 0; // Of the newest connection.

  async function connect(): Promise<Client> {
    const pin = pinHostKey(pinned);
    let client: Client | undefined;
    try {
      const privateKey = await readFile(settings.identity_file, 'utf8');
      const login = { username: user, privateKey };
      const to: SshAddress = { host: address, port, ...login, algorithms: pin.algorithms };
      client = await connectAgain(() => connectSsh(to, pin.isHost));
      const from = performance.now();
      if (!hasNoSecond()) {
        const second = await startSecondSshd(client, pool, login);
        shellMilliseconds = performance.now() - from;
        if (second) return second;
        noSecondUntil = performance.now() + SECOND_AGAIN_MILLISECONDS;
        client.end(); // sshd may still count the channel.
        return await connect();
      }
      const order = { input: Buffer.from(POOL_SCRIPT), streamBytesMax: 4096, milliseconds: CALL_MILLISECONDS };
      const { exitCode, stderr } = await runOnChannel(channelsOf(client), installed, order);
      if (exitCode !== 0) throw new Error(`${pool} cannot be written: ${stderr.toString().trim()}`);
      shellMilliseconds = performance.now() - from;
      return client;
    } catch (error) {
      client?.end();
      if (error instanceof HostUnreachable) throw error;
      if (pin.isOther())
        throw new HostKeyMismatch(`the pool host ${name} shows another host key than the one that is pinned`);
      throw new HostUnreachable(`the pool host ${name} cannot be used: ${(error as Error).message}`);
    }
  }

  const connections = keepConnections(connect);
  const channels: Channels = {
    begin: (text, terminal) =>
      connections.begin(text, terminal).catch((error: Error) => {
        if (error instanceof HostUnreachable || !(error instanceof NeverSent)) throw error;
        throw new HostUnreachable(`the pool host ${name} cannot be used: ${error.message}`, { cause: error });
      }),
  };

  return {
    name,
    identity: hash('sha256', `${keyBlob} ${pool}`),
    chip: settings.chip,
    gpus: settings.gpus,
    channels,
    close: connections.close,
    async ask(verb, args, milliseconds = CALL_MILLISECONDS) {
      try {
        const order = { input: Buffer.alloc(0), streamBytesMax: ANSWER_BYTES_MAX, milliseconds };
        const { exitCode, stdout, stderr } = await runOnChannel(channels, line(verb, args), order);
        return { code: exitCode, output: stdout.toString(), fault: stderr.toString().trim() };
      } catch (error) {
        if (error instanceof HostUnreachable) throw error;
        throw new Error(`the pool host ${name} did not answer ${verb}: ${(error as Error).message}`);
      }
    },
    within: (tenant) => (inner) => line('run', [tenant, inner]),
    shell: () => ({ milliseconds: shellMilliseconds, isForEachLine: hasNoSecond() }),
  };
}
