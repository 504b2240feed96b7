import { createHmac, randomBytes } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import type { Secrets } from '../config.ts';

const KEY_BYTES = 32;

/** The key under which wallet and router tokens are derived. Its id is a fingerprint, safe to print. */
export type MasterKey = { id: string; key: Buffer };

/**
 * Reads the master key from where the configuration says. In the data directory it is generated on the first start
 * (`create`), mode 0600. Throws when it is missing or malformed; the message never holds the key.
 */
export function readMasterKey(source: Secrets['masterKey'], options: { create: boolean }): MasterKey {
  if (source.text !== undefined) return parse(source.text, 'PURSER_MASTER_KEY');
  const path = source.path as string;
  if (!existsSync(path)) {
    if (source.from !== 'data directory' || !options.create)
      throw new Error(
        `There is no master key in ${path}. Without it no wallet token of this installation can be made again.`,
      );
    writeFileSync(path, `${randomBytes(KEY_BYTES).toString('hex')}\n`, { mode: 0o600, flag: 'wx', flush: true });
  }
  return parse(readFileSync(path, 'utf8'), path);
}

function parse(text: string, where: string): MasterKey {
  const trimmed = text.trim();
  const encoding = /^[0-9a-fA-F]{64}$/.test(trimmed)
    ? 'hex'
    : /^[A-Za-z0-9+/_-]{43}=?$/.test(trimmed)
      ? 'base64'
      : undefined;
  if (!encoding)
    throw new Error(`The master key in ${where} must be ${KEY_BYTES} bytes, as 64 hex digits or in base64.`);
  const key = Buffer.from(trimmed, encoding);
  return { id: `mk_${createHmac('sha256', key).update('purser/fingerprint/v1').digest('hex').slice(0, 24)}`, key };
}
