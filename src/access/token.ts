import { createHmac, hash, randomBytes } from 'node:crypto';
import { crc32 } from 'node:zlib';

/** The four kinds of token and their prefixes (design, section 1). `cnv_` stays on the host, `svc_` goes into a sandbox. */
export const TOKEN_PREFIX = {
  account: 'cnv_live_',
  operator: 'cnv_operator_',
  wallet: 'svc_agent_',
  router: 'svc_router_',
} as const;
export type TokenKind = keyof typeof TOKEN_PREFIX;

const BASE62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const SECRET_BYTES = 32;
const SECRET_CHARACTERS = 43; // 62^43 > 2^256
const CHECKSUM_CHARACTERS = 6; // 62^6 > 2^32
const TOKEN_PATTERN = /^[0-9A-Za-z]{49}$/;

function base62(value: bigint, length: number): string {
  let text = '';
  for (let rest = value; text.length < length; rest /= 62n) text = BASE62[Number(rest % 62n)] + text;
  return text;
}

/** Appends a checksum, which lets scanners recognise a leaked token offline. */
function withChecksum(body: string): string {
  return body + base62(BigInt(crc32(body)), CHECKSUM_CHARACTERS);
}

function token(kind: TokenKind, secret: Buffer): string {
  return withChecksum(TOKEN_PREFIX[kind] + base62(BigInt(`0x${secret.toString('hex')}`), SECRET_CHARACTERS));
}

/** Mints a random token. Only its hash may be stored. */
export function mintToken(kind: 'account' | 'operator'): string {
  return token(kind, randomBytes(SECRET_BYTES));
}

/** Derives the token of a row: HMAC-SHA256 under the master key over a purpose label and the row's id. */
export function deriveToken(kind: 'wallet' | 'router', masterKey: Buffer, rowId: string): string {
  return token(kind, createHmac('sha256', masterKey).update(`purser/${kind}-token/v1\0${rowId}`).digest());
}

/** Returns the kind of a token, or undefined when it is not one of ours or its checksum is wrong. */
export function kindOfToken(text: string): TokenKind | undefined {
  for (const [kind, prefix] of Object.entries(TOKEN_PREFIX) as [TokenKind, string][]) {
    if (!text.startsWith(prefix)) continue;
    if (!TOKEN_PATTERN.test(text.slice(prefix.length))) return undefined;
    const body = text.slice(0, -CHECKSUM_CHARACTERS);
    return withChecksum(body) === text ? kind : undefined;
  }
  return undefined;
}

/** Returns whether a string has the prefix of our own tokens; such a string is never a session (design 2.13). */
export function looksLikeOurs(text: string): boolean {
  return text.startsWith('cnv_') || text.startsWith('svc_');
}

/** Returns the stored form of a token: SHA-256. The secret has 256 random bits, so a slow hash would add nothing. */
export function hashToken(text: string): Buffer {
  return hash('sha256', text, 'buffer');
}

/** Returns the last four characters, by which people distinguish tokens. */
export function lastFour(text: string): string {
  return text.slice(-4);
}
