import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { LongText } from '../base/long-text.ts';
import type { Json } from '../base/parse-json.ts';

/** Headers in which clients name a session: Codex, and Claude Code. */
export const SESSION_HEADERS = ['session_id', 'session-id', 'x-claude-code-session-id'] as const;
/** Headers in which clients name a conversation: OpenRouter's, and those of sessions. The first that is sent counts. */
const HEADERS = ['x-session-id', ...SESSION_HEADERS] as const;
/** Characters of a legacy prompt that count: what follows changes from turn to turn. */
const PROMPT_CHARACTERS = 1024;
/** Characters or bytes of each end of a longer text that count, beside its length. */
const END_LENGTH = 8192;
/** Bytes that count of all values of a beginning, and those that each value takes of them at least. */
const BYTES_MAX = 256 * 1024;
const VALUE_BYTES = 64;

/**
 * Returns a hash of the conversation of a body: by `prompt_cache_key`, else by its system prompt and its user's first message, in
 * any of the APIs. Undefined for a request that continues nothing, such as a list of inputs.
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

/**
 * Returns a hash of the beginning of a JSON value: of a long text its ends, and of very many values the first. The time is bounded;
 * conversations may share a hash.
 */
function hashOf(kind: string, value: unknown): string {
  const hash = createHash('sha256').update(kind);
  let remainingBytes = BYTES_MAX;
  add(value);
  return hash.digest('base64url');

  function add(it: unknown): void {
    if (remainingBytes <= 0) return;
    remainingBytes -= VALUE_BYTES;
    if (it instanceof LongText) {
      hash.update(`long ${it.byteLength}:`);
      for (const end of it.ends(END_LENGTH)) take(end);
    } else if (typeof it === 'string') {
      hash.update(`text ${it.length}:`);
      take(it.length > 2 * END_LENGTH ? it.slice(0, END_LENGTH) + it.slice(-END_LENGTH) : it);
    } else if (Array.isArray(it)) {
      hash.update(`list ${it.length}:`);
      for (const item of it) add(item);
    } else if (typeof it === 'object' && it !== null) {
      const members = Object.entries(it);
      hash.update(`object ${members.length}:`);
      for (const member of members) add(member);
    } else hash.update(`${it};`);
  }

  function take(data: string | Buffer): void {
    remainingBytes -= data.length;
    hash.update(data);
  }
}
