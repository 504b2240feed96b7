import { createHash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';

/** Accepts a WebSocket and echoes its messages: the part of RFC 6455 that a client needs. */
export function echoWebSocket({ headers }: IncomingMessage, socket: Duplex, head: Buffer): void {
  const accept = createHash('sha1').update(`${headers['sec-websocket-key']}${GUID}`).digest('base64');
  socket.on('error', () => socket.destroy());
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`,
  );
  let waiting: Buffer = head;
  const read = (piece: Buffer) => {
    waiting = Buffer.concat([waiting, piece]);
    for (let frame = frameOf(waiting); frame; frame = frameOf(waiting)) {
      waiting = waiting.subarray(frame.bytes);
      socket.write(Buffer.concat([headOf(frame.first, frame.payload.length), frame.payload]));
      if ((frame.first & 15) === 8) return void socket.end(); // Close, echoed.
    }
  };
  socket.on('data', read);
  read(Buffer.alloc(0));
}

/** Returns the first frame of a client, whose frames are masked, if it is complete. */
function frameOf(bytes: Buffer): { first: number; payload: Buffer; bytes: number } | undefined {
  if (bytes.length < 6) return undefined;
  const short = (bytes[1] as number) & 127;
  const at = short === 126 ? 4 : short === 127 ? 10 : 2;
  if (bytes.length < at + 4) return undefined;
  const length = short === 126 ? bytes.readUInt16BE(2) : short === 127 ? Number(bytes.readBigUInt64BE(2)) : short;
  const end = at + 4 + length;
  if (bytes.length < end) return undefined;
  const mask = bytes.subarray(at, at + 4);
  const payload = Buffer.from(bytes.subarray(at + 4, end)).map((byte, i) => byte ^ (mask[i % 4] as number));
  return { first: bytes[0] as number, payload: Buffer.from(payload), bytes: end };
}

function headOf(first: number, length: number): Buffer {
  if (length < 126) return Buffer.from([first, length]);
  const head = Buffer.alloc(length < 65_536 ? 4 : 10);
  head[0] = first;
  head[1] = head.length === 4 ? 126 : 127;
  if (head.length === 4) head.writeUInt16BE(length, 2);
  else head.writeBigUInt64BE(BigInt(length), 2);
  return head;
}
