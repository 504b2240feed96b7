const CHARACTER_BYTES_MAX = 4;

/** Returns the number of bytes of UTF-8 before a character that is cut off at the end. */
export function completeLength(bytes: Buffer): number {
  for (let back = 1; back < CHARACTER_BYTES_MAX && back <= bytes.length; back++) {
    const byte = bytes[bytes.length - back] as number;
    if (byte < 0x80) break;
    if (byte < 0xc0) continue; // It continues a character.
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return length > back ? bytes.length - back : bytes.length;
  }
  return bytes.length;
}
