import { createHmac, randomBytes } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import type { MasterKeySource } from '../config/config.ts';
import { decodeMasterKey, KEY_BYTES, MASTER_KEY_RULE } from '../config/master-key.ts';
import { writeDurably, writeDurablySync } from '../files/durable-file.ts';

/** Thrown where books cannot be opened for want of their master key. */
export class NoMasterKeyError extends Error {
  /** The message without its remedy for a lost key, which differs in `restore`. */
  readonly fault: string;

  constructor(fault: string) {
    super(`${fault}; if nobody has it any more, run: purser master-key replace --lost`);
    this.fault = fault;
  }
}

/** The key that wallet and gateway tokens are derived from. Its id is a fingerprint, safe to print. */
export type MasterKey = { id: string; key: Buffer };

/** A service may get its key from its environment, and the shell of a command may not. */
const OURS_IS_MISSING =
  'If the service gets it from PURSER_MASTER_KEY or PURSER_MASTER_KEY_FILE, set the same for this command; else put your copy there';

/**
 * Reads the configured master key. With `create`, a missing key in the data directory is generated, with mode 0600. Throws
 * when the key is missing or malformed; the message never contains the key.
 */
export function readMasterKey(source: MasterKeySource, options: { create: boolean }): MasterKey {
  if (source.text !== undefined) return parseMasterKey(source.text.reveal(), 'PURSER_MASTER_KEY');
  const path = source.path as string;
  if (!existsSync(path)) {
    if (source.from !== 'data directory' || !options.create)
      throw new NoMasterKeyError(
        `There is no master key in ${path}. Without it no wallet token of this installation can be made again. ${source.from === 'data directory' ? OURS_IS_MISSING : 'Put your copy there'}`,
      );
    writeDurablySync(path, textOf(generateMasterKey()));
  }
  return parseMasterKey(readFileSync(path, 'utf8'), path);
}

/** Generates a random master key of 32 bytes. Writes nothing. */
export function generateMasterKey(): MasterKey {
  const key = randomBytes(KEY_BYTES);
  return { id: fingerprintOf(key), key };
}

/** Returns the text of a key's file. */
export const textOf = ({ key }: MasterKey) => `${key.toString('hex')}\n`;

/** Replaces the key file atomically: a crash leaves the old key or the new one. Resolves when the rename is on disk. */
export function replaceMasterKey(path: string, key: MasterKey): Promise<void> {
  return writeDurably(path, textOf(key));
}

/**
 * Keeps the text of a key file that is about to be replaced, in a file beside it that is named with the time. Returns the
 * name. The same text is not written twice.
 */
export async function keepOldKey(path: string, text: string): Promise<string> {
  const stamp = new Date().toISOString().replace(/[-:]|\.\d+/g, '');
  let kept = `${path}.before-${stamp}`;
  for (let i = 2; existsSync(kept) && readFileSync(kept, 'utf8') !== text; i++) kept = `${path}.before-${stamp}-${i}`;
  await writeDurably(kept, text);
  return kept;
}

/** Parses a master key. Throws when it is malformed; the message never contains the key. */
export function parseMasterKey(text: string, where: string): MasterKey {
  const key = decodeMasterKey(text);
  if (!key) throw new Error(`The master key in ${where} ${MASTER_KEY_RULE}.`);
  return { id: fingerprintOf(key), key };
}

/** Returns the id of a key: a fingerprint that reveals nothing about the key. */
export function fingerprintOf(key: Buffer): string {
  return `mk_${createHmac('sha256', key).update('purser/fingerprint/v1').digest('hex').slice(0, 24)}`;
}
