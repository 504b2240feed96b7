import type { Client } from 'ssh2';
import { sshKeyFromSeed } from '../../../base/ssh-key.ts';
import type { Extended } from '../../backend.ts';
import { channelsOf } from '../../kit/channel.ts';
import { connectSsh, type SshFault } from '../../kit/connect.ts';
import { runOnChannel } from '../../kit/ssh-program.ts';
import { hasFailed, type VastApi } from './api.ts';
import type { VastInstance } from './instances.ts';
import { textOf } from './offers.ts';
import { SHOW_DEADLINE, setDeadline } from './onstart.ts';
import type { VastRecord } from './records.ts';
import type { Rentals } from './rentals.ts';

const DEADLINE_MILLISECONDS = 20_000;
/** A key takes a moment to reach the machine; if it is still refused after this, it is sent again. */
const KEY_AGAIN_MILLISECONDS = 30_000;

/** Creates SSH connections to the machines, each with a key of its own; and moves their deadlines, which only the machine enforces. */
export function createVastSsh(
  api: VastApi,
  rentals: Rentals,
  show: (ref: string) => Promise<VastInstance | undefined>,
) {
  /** Connects to the machine as root, with its own key. */
  async function connect(ref: string, milliseconds?: number): Promise<Client> {
    const rental = rentals.of(ref);
    const instance = rental.instance ?? (await show(ref));
    if (!instance) throw new Error(`vast: instance ${ref} is gone`);
    const record = await sendKey(api, rentals, ref, instance.label);
    const { privateKey } = sshKeyFromSeed(Buffer.from(record.seed, 'base64'), record.tag);
    let fault: unknown = new Error(`vast: instance ${ref} has no address yet`);
    for (const address of instance.addresses) {
      // Vast does not publish a machine's host key: the first one that it shows is trusted, and no other afterwards.
      let shown = '';
      const isHost = (key: Buffer) => {
        shown = key.toString('base64');
        return record.hostKey === undefined || record.hostKey === shown;
      };
      try {
        const client = await connectSsh({ ...address, username: 'root', privateKey }, isHost, milliseconds);
        if (record.hostKey === undefined) rentals.change(ref, { hostKey: shown });
        rental.isReached = true;
        return client;
      } catch (error) {
        fault = error;
        const isRefused = (error as SshFault).level === 'client-authentication';
        if (isRefused && performance.now() - rental.keySentAt > KEY_AGAIN_MILLISECONDS)
          rentals.change(ref, { attached: false });
      }
    }
    rental.instance = undefined; // It may have moved: its address is asked for again.
    throw fault;
  }

  return {
    connect,

    /** Asks the machine for its deadline when it is not known here: after a lost connection or a lost record. */
    async readDeadline(ref: string, milliseconds: number): Promise<void> {
      try {
        const client = await connect(ref, milliseconds);
        try {
          const { exitCode, stdout } = await run(client, SHOW_DEADLINE);
          const deadline = stdout.toString().trim();
          if (exitCode === 0 && /^\d{1,12}$/.test(deadline)) rentals.change(ref, { deadline: Number(deadline) });
        } finally {
          client.end();
        }
      } catch {} // It stays unknown, and callers that need it wait.
    },

    /** Moves the deadline of a machine. */
    async moveDeadline(ref: string, deadline: number): Promise<Extended> {
      let client: Client;
      try {
        client = await connect(ref);
      } catch (error) {
        return { kind: 'refused', reason: `the machine cannot be reached: ${(error as Error).message}` };
      }
      rentals.change(ref, { deadline: undefined }); // From here on only the machine knows its deadline, even if this process dies.
      try {
        const { exitCode, stdout, stderr } = await run(client, setDeadline(deadline));
        if (exitCode !== 0 || stdout.toString().trim() !== String(deadline))
          return {
            kind: 'refused',
            reason: `the machine did not take it: ${textOf(stderr.toString().trim()) ?? exitCode}`,
          };
      } catch (error) {
        return { kind: 'unknown', reason: (error as Error).message };
      } finally {
        client.end();
      }
      rentals.change(ref, { deadline });
      return { kind: 'done' };
    },
  };
}

/** Returns the machine's record, after making sure that the machine has its key. */
async function sendKey(api: VastApi, rentals: Rentals, ref: string, tag: string): Promise<VastRecord> {
  const record = rentals.keep(ref, tag);
  if (record.attached) return record;
  const { publicKey } = sshKeyFromSeed(Buffer.from(record.seed, 'base64'), record.tag);
  const answer = await api.call('attach', 'POST', `/api/v0/instances/${ref}/ssh/`, { ssh_key: publicKey });
  if (answer.status < 200 || answer.status > 299 || hasFailed(answer))
    throw new Error(`vast: instance ${ref} took no key: ${answer.words}`);
  rentals.of(ref).keySentAt = performance.now();
  rentals.change(ref, { attached: true });
  return record;
}

const run = (client: Client, line: string) =>
  runOnChannel(channelsOf(client), line, {
    input: Buffer.alloc(0),
    streamBytesMax: 1000,
    milliseconds: DEADLINE_MILLISECONDS,
  });
