/**
 * The first message of TLS (RFC 8446, sections 4.1.2 and 5.1), which names the server in the clear. Each byte is looked at once,
 * however it comes, and no more of them are taken than fit.
 */

const BYTES_MAX = 16 * 1024;
const RECORD_HEAD_BYTES = 5;
const HANDSHAKE_HEAD_BYTES = 4;
const HANDSHAKE_RECORD = 22;
const CLIENT_HELLO = 1;
const SERVER_NAME = 0;
const ENCRYPTED_CLIENT_HELLO = 0xfe0d;

/** The server that a client names, or what is wrong with what it sent. */
type Hello = { serverName: string } | { fault: string };

type HelloReader = {
  /** Takes the next bytes. Returns undefined while the message is not complete. */
  take(piece: Buffer): Hello | undefined;
  /** Returns all the bytes that were taken. */
  taken(): Buffer;
};

/** Creates a reader of one first message. */
export function createHelloReader(): HelloReader {
  const raw = Buffer.allocUnsafe(BYTES_MAX);
  const message = Buffer.allocUnsafe(BYTES_MAX);
  let [rawLength, at, messageLength] = [0, 0, 0];
  let rest: Buffer = Buffer.alloc(0);

  const end = () => HANDSHAKE_HEAD_BYTES + message.readUIntBE(1, 3);
  const isComplete = () => messageLength >= HANDSHAKE_HEAD_BYTES && messageLength >= end();

  /** Moves the content of the records that have come to `message`. Returns a fault. */
  function unpack(): string | undefined {
    while (rawLength - at >= RECORD_HEAD_BYTES) {
      if (isComplete()) return undefined; // What follows, such as early data, is for the server.
      const length = raw.readUInt16BE(at + 3);
      if (raw[at] !== HANDSHAKE_RECORD || raw[at + 1] !== 3 || length === 0) return 'what came first is no TLS';
      if (rawLength - at < RECORD_HEAD_BYTES + length) return undefined;
      messageLength += raw.copy(message, messageLength, at + RECORD_HEAD_BYTES, at + RECORD_HEAD_BYTES + length);
      at += RECORD_HEAD_BYTES + length;
    }
    return rawLength > at && raw[at] !== HANDSHAKE_RECORD && !isComplete() ? 'what came first is no TLS' : undefined;
  }

  return {
    take(piece) {
      const copied = piece.copy(raw, rawLength);
      rawLength += copied;
      rest = piece.subarray(copied);
      const fault = unpack();
      if (fault !== undefined) return { fault };
      if (messageLength > 0 && message[0] !== CLIENT_HELLO) return { fault: 'what came first is no ClientHello' };
      if (isComplete()) return nameIn(message.subarray(HANDSHAKE_HEAD_BYTES, end()));
      return rawLength === BYTES_MAX ? { fault: `the ClientHello is longer than ${BYTES_MAX} bytes` } : undefined;
    },
    taken: () => (rest.length ? Buffer.concat([raw.subarray(0, rawLength), rest]) : raw.subarray(0, rawLength)),
  };
}

/** Returns a reader of fields, each with its length in front. It throws RangeError where one is cut short. */
function fieldsOf(bytes: Buffer) {
  let at = 0;
  const take = (count: number) => {
    if (bytes.length - at < count) throw new RangeError();
    at += count;
    return bytes.subarray(at - count, at);
  };
  const number = (size: number) => take(size).readUIntBE(0, size);
  return { take, number, field: (size: number) => take(number(size)), isOver: () => at === bytes.length };
}

function nameIn(hello: Buffer): Hello {
  try {
    const fields = fieldsOf(hello);
    fields.take(2 + 32); // Version and random.
    fields.field(1);
    fields.field(2);
    fields.field(1);
    if (fields.isOver()) return { fault: 'it names no server (no SNI)' };
    const extensions = fieldsOf(fields.field(2));
    let names: Buffer | undefined;
    while (!extensions.isOver()) {
      const kind = extensions.number(2);
      const content = extensions.field(2);
      if (kind === ENCRYPTED_CLIENT_HELLO) return { fault: 'it hides the server that it asks for (ECH)' };
      if (kind !== SERVER_NAME) continue;
      if (names) return { fault: 'it names the server twice' };
      names = content;
    }
    if (!names || !fields.isOver()) return { fault: 'it names no server (no SNI)' };
    const list = fieldsOf(fieldsOf(names).field(2));
    const kind = list.number(1);
    const name = list.field(2);
    if (kind !== 0 || !list.isOver()) return { fault: 'it does not name one server (SNI)' };
    return { serverName: name.toString('latin1') };
  } catch (error) {
    if (error instanceof RangeError) return { fault: 'its ClientHello is malformed' };
    throw error;
  }
}
