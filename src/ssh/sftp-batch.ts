import { type PacketReader, REQUEST, readFields } from '../compute/machine/sftp-wire.ts';
import { handleId } from './sftp-handles.ts';

const BATCH_BYTES_MAX = 1024 * 1024;

export type SftpWrite = { id: number; handle: number; offset: bigint; piece: Buffer };

function writeOf(packet: Buffer): SftpWrite | undefined {
  const fields = readFields(packet);
  if (fields.byte() !== REQUEST.write) return undefined;
  return { id: fields.uint32(), handle: handleId(fields.string()), offset: fields.uint64(), piece: fields.string() };
}

/**
 * Combines a write with the contiguous writes behind it that have already arrived. Clients send dozens without waiting, and
 * the machine executes them as one.
 */
export async function gatherWrites(packets: PacketReader, packet: Buffer): Promise<SftpWrite[]> {
  const batch: SftpWrite[] = [];
  let [end, bytes] = [0n, 0];
  const add = (write: SftpWrite) => {
    batch.push(write);
    bytes += write.piece.length;
    end = write.offset + BigInt(write.piece.length);
  };
  const first = writeOf(packet) as SftpWrite;
  add(first);
  for (;;) {
    const next = packets.peek();
    const write = next && writeOf(next);
    if (!write || write.handle !== first.handle || write.offset !== end) return batch;
    if (bytes + write.piece.length > BATCH_BYTES_MAX) return batch;
    await packets.next();
    add(write);
  }
}
