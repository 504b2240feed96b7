/** The length of a master key. */
export const KEY_BYTES = 32;

/** The rule for the text of a master key. A message puts the place of the text before it. */
export const MASTER_KEY_RULE = `must be ${KEY_BYTES} bytes, as 64 hex digits or in base64`;

/** Decodes the text of a master key. Returns undefined when it is malformed. */
export function decodeMasterKey(text: string): Buffer | undefined {
  const trimmed = text.trim();
  if (/^[0-9a-fA-F]{64}$/.test(trimmed)) return Buffer.from(trimmed, 'hex');
  if (/^[A-Za-z0-9+/_-]{43}=?$/.test(trimmed)) return Buffer.from(trimmed, 'base64');
  return undefined;
}
