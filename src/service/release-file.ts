import { hash } from 'node:crypto';
import { closeSync, constants, existsSync, fstatSync, openSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { Refusal } from '../base/refusal.ts';
import { ed25519KeyOf, signatureFault } from '../base/ssh-signature.ts';

/** The executable of a release, as `purser upgrade` gets it. */

/** The namespace of the signatures of releases. */
export const NAMESPACE = 'purser-release';
const FILE_BYTES_MAX = 2 ** 30;
const [SUMS, SIGNATURE] = ['SHA256SUMS', 'SHA256SUMS.sig'];
const VERSION = /^(\d+)\.(\d+)\.(\d+)$/;
const [ELF, ELF_MACHINE_AT] = [0x7f454c46, 18];

const refused = (why: string) => new Refusal('conflict', why);

export const isVersion = (text: string): boolean => VERSION.test(text);

/** Returns whether a version is older than another one. */
export function isOlder(one: string, other: string): boolean {
  const [a, b] = [one, other].map((it) => (VERSION.exec(it) ?? []).slice(1).map(Number)) as [number[], number[]];
  const at = a.findIndex((it, i) => it !== b[i]);
  return at >= 0 && (a[at] as number) < (b[at] as number);
}

/** Returns whether an executable is for another processor than a second one, by their ELF headers. */
export function isForOther(one: Buffer, other: Buffer): boolean {
  const [a, b] = [one, other].map((it) =>
    it.length > ELF_MACHINE_AT + 2 && it.readUInt32BE() === ELF ? it.readUInt16LE(ELF_MACHINE_AT) : undefined,
  );
  return a !== undefined && b !== undefined && a !== b;
}

/**
 * Returns the bytes of a release's executable, read once, and adds to `done` what was checked. Throws `not_found`, and `conflict`
 * unless the sum beside it is right and the sums are signed by one of `trusted`, which are lines as in a .pub file. Without
 * `trusted` no signature is checked, and no sum where there are none.
 */
export function readRelease(file: string, trusted: readonly string[] | undefined, done: string[]): Buffer {
  const beside = (name: string) => join(dirname(file), name);
  const bytes = readRegular(file);
  if (!trusted && !existsSync(beside(SUMS))) {
    done.push('Neither the sum nor the signature of the file was checked.');
    return bytes;
  }
  const sums = readRegular(beside(SUMS));
  if (trusted) {
    const keys = trusted.map((it) => ed25519KeyOf(it) as Buffer);
    const fault = signatureFault(sums, readRegular(beside(SIGNATURE)).toString('latin1'), NAMESPACE, keys);
    if (fault)
      throw refused(
        `${beside(SIGNATURE)} ${fault}. Nothing was changed. To do without, which trusts whoever gave you the file: --insecure`,
      );
  }
  const name = basename(file);
  const named = [...sums.toString('utf8').matchAll(/^([0-9a-f]{64}) [ *](.+)$/gm)].filter(([, , it]) => it === name);
  if (named.length !== 1) throw refused(`${beside(SUMS)} does not name ${name} once. Nothing was changed.`);
  if (named[0]?.[1] !== hash('sha256', bytes))
    throw refused(`${file} is not what ${SUMS} names: it is damaged, or another. Nothing was changed.`);
  done.push(
    trusted ? 'The file is signed by a trusted key.' : 'The sum of the file is right; who signed it was not checked.',
  );
  return bytes;
}

/** Reads a regular file, and waits for nothing. Throws `not_found`, and `conflict` for a link and whatever else is no file. */
function readRegular(path: string): Buffer {
  let handle: number;
  try {
    handle = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') throw new Refusal('not_found', `There is no file ${path}.`);
    throw refused(code === 'ELOOP' ? `${path} is a link. Name the file itself.` : `${path} cannot be read (${code}).`);
  }
  try {
    const it = fstatSync(handle);
    if (!it.isFile() || it.size > FILE_BYTES_MAX) throw refused(`${path} is no regular file of at most 1 GiB.`);
    return readFileSync(handle);
  } finally {
    closeSync(handle);
  }
}
