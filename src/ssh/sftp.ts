import type { Readable } from 'node:stream';
import type { Session } from '../compute/backend.ts';
import type { Memory } from './memory.ts';
import { gatherWrites } from './sftp-batch.ts';
import { SftpFault } from './sftp-fault.ts';
import { createInside } from './sftp-inside.ts';
import { createResponder } from './sftp-respond.ts';
import { answer, createPacketReader, MalformedPacket, REQUEST, readFields, STATUS } from './sftp-wire.ts';

const EXTENSIONS = {
  'posix-rename@openssh.com': '1',
  'statvfs@openssh.com': '2',
  'fstatvfs@openssh.com': '2',
  'hardlink@openssh.com': '1',
  'fsync@openssh.com': '1',
  'limits@openssh.com': '1',
};

export type SftpClient = {
  source: Readable;
  /** Resolves when there is room for more; rejects when the client is gone. */
  send(bytes: Buffer): Promise<void>;
  /** The name of its software. */
  software: string;
  memory: Memory;
};

/**
 * An sftp server, version 3, whose files are those of the machine in which `session` runs `SFTP_SCRIPT`. One request after
 * the other; what is not taken from the client waits with the client. Returns when the client has nothing more to ask.
 * Throws SftpFault when the machine cannot serve, MalformedPacket, InsideLost, and when the client is gone.
 */
export async function serveSftp(client: SftpClient, session: Session, now: () => number): Promise<void> {
  const packets = createPacketReader(client.source);
  const { respond, write } = await createResponder(createInside(session), client.software, client.memory, now);

  const greeting = await packets.next();
  if (!greeting) return;
  if (readFields(greeting).byte() !== REQUEST.init) throw new MalformedPacket('the first packet is no greeting');
  await client.send(answer.version(EXTENSIONS));
  for (let packet = await packets.next(); packet; packet = await packets.next()) {
    const fields = readFields(packet);
    const [type, id] = [fields.byte(), fields.uint32()];
    if (type === REQUEST.write) {
      const batch = await gatherWrites(packets, packet);
      const { status, message } = await statusOf(() => write(batch));
      for (const it of batch) await client.send(answer.status(it.id, status, message));
    } else {
      let said: Buffer | undefined;
      const { status, message } = await statusOf(async () => {
        said = await respond(type, fields, id);
      });
      await client.send(said ?? answer.status(id, status, message));
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
