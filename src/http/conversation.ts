import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import type { Json } from './dialects/json.ts';

/** Headers in which clients name a conversation: OpenRouter's, Codex's and Claude Code's. The first that is sent counts. */
const HEADERS = ['x-session-id', 'session-id', 'session_id', 'x-claude-code-session-id'] as const;
/** Characters of a legacy prompt that count: what follows changes from turn to turn. */
const PROMPT_CHARACTERS = 1024;

/** A conversation in a body: a hash of the name that the client gave it, or of how it begins. */
export type Conversation = { hash: string; isNamed: boolean };

const hash = (text: string) => createHash('sha256').update(text).digest('base64url');

/**
 * Returns the conversation that a request belongs to: by `prompt_cache_key`, else by its system prompt and the first message
 * of its user, in any of the APIs. Undefined for a request that continues nothing, such as a list of inputs.
 */
export function conversationOf(body: Json): Conversation | undefined {
  const { prompt_cache_key: key, system, instructions, messages, input, prompt } = body;
  if (typeof key === 'string' && key !== '') return { hash: hash(key), isNamed: true };
  if (typeof prompt === 'string') return { hash: hash(prompt.slice(0, PROMPT_CHARACTERS)), isNamed: false };
  const turns = messages ?? input;
  if (Array.isArray(turns) && !isTurn(turns[0])) return undefined; // Texts or tokens to embed.
  if (!Array.isArray(turns) && (typeof turns !== 'string' || instructions === undefined)) return undefined;
  return { hash: hash(JSON.stringify([system, instructions, beginningOf(turns)])), isNamed: false };
}

const isTurn = (it: unknown) => typeof it === 'object' && it !== null && !Array.isArray(it);

/** Returns the turns up to the first of the user. */
function beginningOf(turns: unknown): unknown {
  if (!Array.isArray(turns)) return turns;
  const at = turns.findIndex((it) => (it as { role?: unknown } | null)?.role === 'user');
  return turns.slice(0, at + 1 || 1);
}

/** Returns the conversation of a request by its headers, or else its body. A name that a client gives is one of its wallet. */
export function conversationIn(
  headers: IncomingHttpHeaders,
  walletId: string,
  ofBody: Conversation | undefined,
): string | undefined {
  const name = HEADERS.map((it) => headers[it]).find((it) => typeof it === 'string' && it !== '');
  if (name !== undefined) return hash(`${walletId}\n${name}`);
  return ofBody?.isNamed ? hash(`${walletId}\n${ofBody.hash}`) : ofBody?.hash;
}
