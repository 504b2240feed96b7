import { hash } from 'node:crypto';

/**
 * Serializes JSON with sorted keys and no spaces, so that two bodies with the same meaning give the same text (design
 * 2.7).
 */
export function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const members = Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonicalJson((value as Record<string, unknown>)[key])}`);
  return `{${members.join(',')}}`;
}

/**
 * Returns the SHA-256 of the canonical JSON of a parsed body, before defaults are applied. The HTTP layer limits the
 * nesting.
 */
export function fingerprint(body: unknown): Buffer {
  return hash('sha256', canonicalJson(body), 'buffer');
}
