import type { Readable } from 'node:stream';
import type { GuestSession } from '../compute/backend.ts';
import { createScriptClient } from '../compute/machine/sftp-client.ts';
import { SftpFault, STATUS } from '../compute/machine/sftp-fault.ts';
import { answer, createPacketReader, MalformedPacket, REQUEST, readFields } from '../compute/machine/sftp-wire.ts';
import type { MemoryShare } from './memory.ts';
import { gatherWrites } from './sftp-batch.ts';
import { createResponder } from './sftp-respond.ts';

/** The pause of a client after which a file is opened that was to be opened with its next request. */
const PAUSE_MILLISECONDS = 50;

const EXTENSIONS = {
  'posix-rename@openssh.com': '1',
  'statvfs@openssh.com': '2',
  'fstatvfs@openssh.com': '2',
  'hardlink@openssh.com': '1',
  'fsync@openssh.com': '1',
  'limits@openssh.com': '1',
};

type SftpClient = {
  source: Readable;
  /** Resolves when more can be sent; rejects when the client has disconnected. */
  send(bytes: Buffer): Promise<void>;
  /** The name of the client software. */
  software: string;
  memory: MemoryShare;
  /** As `createRows` takes it. */
  alone(): number | undefined;
  /** The clock of what was read; the process's own unless given. */
  milliseconds?: () => number;
};

/**
 * Serves sftp, version 3, for the files of the machine in which `session` runs `SFTP_SCRIPT`. Handles requests one at a time with
 * back-pressure to the client. Resolves at the end of the client's input. Throws SftpFault when the machine cannot serve,
 * MalformedPacket, ScriptLost, and the errors of `client.send`.
 */
export async function serveSftp(client: SftpClient, session: GuestSession, now: () => number): Promise<void> {
  const packets = createPacketReader(client.source);
  const { respond, write, settle, isSettled } = await createResponder(
    createScriptClient(session, client.milliseconds),
    client,
    now,
  );

  const greeting = await packets.next();
  if (!greeting) return;
  if (readFields(greeting).byte() !== REQUEST.init) throw new MalformedPacket('the first packet is no greeting');
  await client.send(answer.version(EXTENSIONS));
  async function next(): Promise<Buffer | undefined> {
    if (isSettled()) return packets.next();
    const coming = packets.next();
    const { promise: isLate, resolve } = Promise.withResolvers<boolean>();
    const late = setTimeout(resolve, PAUSE_MILLISECONDS, true);
    if (await Promise.race([coming.then(() => false), isLate])) await settle();
    clearTimeout(late);
    return coming;
  }
  for (let packet = await next(); packet; packet = await next()) {
    const fields = readFields(packet);
    const [type, id] = [fields.byte(), fields.uint32()];
    if (type === REQUEST.write) {
      const batch = await gatherWrites(packets, packet);
      const { status, message } = await statusOf(() => write(batch));
      for (const it of batch) await client.send(answer.status(it.id, status, message));
    } else {
      let response: Buffer | undefined;
      const { status, message } = await statusOf(async () => {
        response = await respond(type, fields, id);
      });
      await client.send(response ?? answer.status(id, status, message));
    }
  }
}

async function statusOf(act: () => Promise<void>): Promise<Pick<SftpFault, 'status' | 'message'>> {
  try {
    await act();
    return { status: STATUS.ok, message: 'Success' };
  } catch (error) {
    if (error instanceof SftpFault) return error;
    throw error;
  }
}
