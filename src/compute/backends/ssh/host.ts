import { hash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { Client } from 'ssh2';
import { connectSsh, quoted, runOver, type SshAddress, type Within } from './machine.ts';
import { POOL_SCRIPT, POOL_SCRIPT_NAME } from './script.ts';
import type { SshSettings } from './settings.ts';

const CALL_MILLISECONDS = 45_000; // A verb waits at most 20 s for a lock, and nvidia-smi has its own limits.
const SAID_BYTES_MAX = 64 * 1024;
const RSA_SIGNATURES = ['rsa-sha2-512', 'rsa-sha2-256'];

/** The host cannot be used, and received nothing of the request. */
export class HostUnreachable extends Error {}
/** The host key differs: another machine answers there, or the host was reinstalled. Only the operator can tell. */
export class HostKeyMismatch extends HostUnreachable {}

export type HostAnswer = { code: number; said: string; fault: string };

/** One of the operator's own hosts. */
export type PoolHost = {
  /** `address:port`. */
  name: string;
  /** A hash of its host key and state directory: if either changes, its tenant would not be found. */
  place: string;
  chip: string;
  gpus: number;
  /** Opens a new connection. Throws HostUnreachable. */
  connect(): Promise<Client>;
  /**
   * Runs one verb of the pool script. Throws HostUnreachable if the host received nothing, another Error if the line
   * broke.
   */
  ask(verb: string, args: string[], milliseconds?: number): Promise<HostAnswer>;
  /** Wraps a line of shell so that it runs as the tenant's user. */
  within(user: string): Within;
};

export function createPoolHost(settings: SshSettings['hosts'][number]): PoolHost {
  const { address, port, user, host_key: pinned, state_directory: pool } = settings;
  const name = `${address}:${port}`;
  const [keyType = '', keyBlob = ''] = pinned.split(' ');
  const script = `${pool}/${POOL_SCRIPT_NAME}`;
  const line = (verb: string, args: string[]) =>
    ['exec /bin/sh', ...[script, pool, verb, ...args].map((it) => quoted(it))].join(' ');
  // The script is uploaded once per process, whole or not at all.
  const install = `set -e; umask 077; mkdir -p ${quoted(pool)}; cat > ${quoted(script)}.$$
    test "$(wc -c < ${quoted(script)}.$$)" -eq ${Buffer.byteLength(POOL_SCRIPT)} && mv -f ${quoted(script)}.$$ ${quoted(script)}`;
  let isInstalled = false;

  async function connect(): Promise<Client> {
    let isOther = false;
    const isHost = (key: Buffer) => {
      isOther = key.toString('base64') !== keyBlob;
      return !isOther;
    };
    let client: Client | undefined;
    try {
      const to: SshAddress = {
        host: address,
        port,
        username: user,
        privateKey: await readFile(settings.identity_file, 'utf8'),
        // Asks for the pinned kind of key: a host with several might show another.
        algorithms: { serverHostKey: (keyType === 'ssh-rsa' ? RSA_SIGNATURES : [keyType]) as never },
      };
      client = await connectSsh(to, isHost);
      if (!isInstalled) {
        const order = { input: Buffer.from(POOL_SCRIPT), streamBytesMax: 4096, milliseconds: CALL_MILLISECONDS };
        const { exitCode, stderr } = await runOver(client, install, order);
        if (exitCode !== 0) throw new Error(`${pool} cannot be written: ${stderr.toString().trim()}`);
        isInstalled = true;
      }
      return client;
    } catch (error) {
      client?.end();
      if (isOther)
        throw new HostKeyMismatch(`the pool host ${name} shows another host key than the one that is pinned`);
      throw new HostUnreachable(`the pool host ${name} cannot be used: ${(error as Error).message}`);
    }
  }

  return {
    name,
    place: hash('sha256', `${keyBlob} ${pool}`),
    chip: settings.chip,
    gpus: settings.gpus,
    connect,
    async ask(verb, args, milliseconds = CALL_MILLISECONDS) {
      const client = await connect();
      try {
        const order = { input: Buffer.alloc(0), streamBytesMax: SAID_BYTES_MAX, milliseconds };
        const { exitCode, stdout, stderr } = await runOver(client, line(verb, args), order);
        return { code: exitCode, said: stdout.toString(), fault: stderr.toString().trim() };
      } catch (error) {
        isInstalled = false;
        throw new Error(`the pool host ${name} did not answer ${verb}: ${(error as Error).message}`);
      } finally {
        client.end();
      }
    },
    within: (tenant) => (inner) => line('run', [tenant, inner]),
  };
}
