import { hash } from 'node:crypto';

const NAME_LENGTH_MAX = 64;
const NAME = /^[A-Za-z0-9_-]{1,64}$/;
const HASH_DIGITS = 8;

/** Returns the name under which chat completions know a tool: one word of at most 64 characters. */
export function flatName(name: string, namespace?: string): string {
  const whole = namespace === undefined ? name : `${namespace}__${name}`;
  if (NAME.test(whole)) return whole;
  const digits = hash('sha256', whole, 'hex').slice(0, HASH_DIGITS);
  return `${whole.replace(/[^A-Za-z0-9_-]/g, '_').slice(0, NAME_LENGTH_MAX - HASH_DIGITS - 1)}_${digits}`;
}
