import type { IncomingHttpHeaders } from 'node:http';
import { Refusal } from '../base/refusal.ts';
import { SESSION_HEADERS } from './conversation.ts';
import { parseObject } from './dialects/json.ts';

/** A tag: a name and a value that a caller gives a paid request, to find its spending again. */
export type Tag = [name: string, value: string];

const COUNT_MAX = 8;
const NAME = /^[a-z0-9_.-]{1,32}$/;
const VALUE_LENGTH_MAX = 128;
export const TAG_HEADER = 'x-purser-tag-';
/** `metadata.user_id` as Claude Code writes it, in its older form and as JSON. */
const CLAUDE_USER_LENGTH_MAX = 1024;
const CLAUDE_USER = /^user_([^_]{1,128})_account_.*_session_([\w-]{1,128})$/;

function isValue(value: unknown): value is string {
  if (typeof value !== 'string' || value.length > 2 * VALUE_LENGTH_MAX) return false;
  const length = [...value].length;
  return length >= 1 && length <= VALUE_LENGTH_MAX && value.isWellFormed() && !/\p{Cc}/u.test(value);
}

/**
 * Returns the tags in the body of a request to a model: the string members of `metadata`, and the ids of user and session of Claude
 * Code (`metadata.user_id`) and Codex (`prompt_cache_key`). Leaves out invalid tags: metadata has wider limits.
 */
export function tagsOfBody({ metadata, prompt_cache_key: cacheKey }: Record<string, unknown>): Tag[] {
  const tags: Tag[] = [];
  if (typeof metadata === 'object' && metadata !== null && !Array.isArray(metadata))
    for (const [name, value] of Object.entries(metadata)) {
      if (tags.length >= COUNT_MAX) break;
      const ids = name === 'user_id' && typeof value === 'string' ? claudeIds(value) : [];
      if (ids.length) tags.push(...ids);
      else if (NAME.test(name) && isValue(value)) tags.push([name, value]);
    }
  if (isValue(cacheKey)) tags.push(['session', cacheKey]);
  return tags;
}

/** Returns the tags `user` and `session` in a `metadata.user_id` of Claude Code; none for any other form. */
function claudeIds(text: string): Tag[] {
  if (text.length > CLAUDE_USER_LENGTH_MAX) return [];
  let user: unknown;
  let session: unknown;
  if (text.startsWith('{')) ({ device_id: user, session_id: session } = parseObject(text) ?? {});
  else [, user, session] = CLAUDE_USER.exec(text) ?? [];
  return Object.entries({ user, session }).filter((it): it is Tag => isValue(it[1]));
}

/**
 * Returns the tags of a request as the JSON that is stored with its operation, or null without any: from the headers
 * `X-Purser-Tag-NAME`, then the body, then the session that a client names in a header of its own. The first of each name counts,
 * and the first eight in all. Throws `invalid_request` for an invalid tag in a header, and for more than eight of them.
 */
export function tagsOf(headers: IncomingHttpHeaders, ofBody: readonly Tag[] = []): string | null {
  const tags = tagsOfHeaders(headers);
  if (tags.size > COUNT_MAX) throw new Refusal('invalid_request', `X-Purser-Tag: at most ${COUNT_MAX} tags a request.`);
  const add = (name: string, value: unknown) => {
    if (tags.size < COUNT_MAX && !tags.has(name) && isValue(value)) tags.set(name, value);
  };
  for (const [name, value] of ofBody) add(name, value);
  for (const header of SESSION_HEADERS) add('session', headers[header]);
  return tags.size ? JSON.stringify(Object.fromEntries(tags)) : null;
}

function tagsOfHeaders(headers: IncomingHttpHeaders): Map<string, string> {
  const tags = new Map<string, string>();
  for (const header of Object.keys(headers)) {
    if (!header.startsWith(TAG_HEADER)) continue;
    const name = header.slice(TAG_HEADER.length);
    const value = Buffer.from(String(headers[header]), 'latin1').toString(); // Node reads headers as Latin-1.
    if (!NAME.test(name))
      throw new Refusal('invalid_request', `X-Purser-Tag-${name}: a name has 1 to 32 of a-z, 0-9, "_", "." and "-".`);
    if (!isValue(value) || value.includes('\ufffd'))
      throw new Refusal(
        'invalid_request',
        `X-Purser-Tag-${name}: a value has 1 to ${VALUE_LENGTH_MAX} characters of UTF-8, without control characters.`,
      );
    tags.set(name, value);
  }
  return tags;
}
