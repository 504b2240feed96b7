import { createHash, type Hash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { LongText } from '../base/long-text.ts';
import type { Json } from './dialects/json.ts';

/** Headers in which clients name a session: Codex, and Claude Code. */
export const SESSION_HEADERS = ['session_id', 'session-id', 'x-claude-code-session-id'] as const;
/** Headers in which clients name a conversation: OpenRouter's, and those of sessions. The first that is sent counts. */
const HEADERS = ['x-session-id', ...SESSION_HEADERS] as const;
/** Characters of a legacy prompt that count: what follows changes from turn to turn. */
const PROMPT_CHARACTERS = 1024;
/** Characters or bytes of each end of a longer text that count, beside its length. */
const END_LENGTH = 8192;

/**
 * Returns the conversation that a body belongs to, as a hash: by `prompt_cache_key`, else by its system prompt and the first
 * message of its user, in any of the APIs. Undefined for a request that continues nothing, such as a list of inputs.
 */
export function conversationOf(body: Json): string | undefined {
  const { prompt_cache_key: key, system, instructions, messages, input, prompt } = body;
  if (typeof key === 'string' && key !== '') return hashOf('name', key);
  if (typeof prompt === 'string') return hashOf('prompt', prompt.slice(0, PROMPT_CHARACTERS));
  const turns = messages ?? input;
  if (Array.isArray(turns) && !isTurn(turns[0])) return undefined; // Texts or tokens to embed.
  if (!Array.isArray(turns) && (typeof turns !== 'string' || instructions === undefined)) return undefined;
  return hashOf('beginning', [system, instructions, beginningOf(turns)]);
}

const isTurn = (it: unknown) => typeof it === 'object' && it !== null && !Array.isArray(it);

/** Returns the turns up to the first of the user. */
function beginningOf(turns: unknown): unknown {
  if (!Array.isArray(turns)) return turns;
  const at = turns.findIndex((it) => (it as { role?: unknown } | null)?.role === 'user');
  return turns.slice(0, at + 1 || 1);
}

/**
 * Returns the conversation of a request by its headers, or else by its body. It is one of its wallet: another wallet with the
 * same name or beginning neither moves it nor learns of it.
 */
export function conversationIn(
  headers: IncomingHttpHeaders,
  walletId: string,
  ofBody: string | undefined,
): string | undefined {
  const name = HEADERS.map((it) => headers[it]).find((it) => typeof it === 'string' && it !== '');
  if (name !== undefined) return hashOf('header', [walletId, name]);
  return ofBody === undefined ? undefined : hashOf('body', [walletId, ofBody]);
}

function hashOf(kind: string, value: unknown): string {
  const hash = createHash('sha256').update(kind);
  add(hash, value);
  return hash.digest('base64url');
}

/** Adds a JSON value to a hash, of a long text its ends: a conversation need not be told from all others. */
function add(hash: Hash, value: unknown): void {
  if (value instanceof LongText) {
    hash.update(`long ${value.byteLength}:`);
    for (const it of value.ends(END_LENGTH)) hash.update(it);
  } else if (typeof value === 'string') {
    hash.update(`text ${value.length}:`);
    hash.update(value.length > 2 * END_LENGTH ? value.slice(0, END_LENGTH) + value.slice(-END_LENGTH) : value);
  } else if (Array.isArray(value)) {
    hash.update(`list ${value.length}:`);
    for (const it of value) add(hash, it);
  } else if (typeof value === 'object' && value !== null) {
    const members = Object.entries(value);
    hash.update(`object ${members.length}:`);
    for (const it of members) add(hash, it);
  } else hash.update(`${value};`);
}
