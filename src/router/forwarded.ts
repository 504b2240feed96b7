import { countMembers, type ParsedText, type TextMember } from '../base/json-text.ts';

/**
 * The members of a request that are forwarded unchanged. Each of the `ranges` of `bytes` is one member, or several with
 * commas between them.
 */
export type Forwarded = { bytes: Buffer; ranges: [start: number, end: number][] };

/**
 * Returns the members of these names where they are in the body. A body that other parsers might read differently from JSON.parse
 * is rewritten: one with duplicate names (a server may count the first, and we price the last), with longer numbers or with more
 * white space than is priced. The priced bytes are the sent bytes.
 */
export function forwardedFrom(
  bytes: Buffer,
  { outline, value }: Pick<ParsedText, 'outline' | 'value'>,
  names: readonly string[],
): Forwarded {
  if (!outline.isPlain || outline.memberCount !== countMembers(value))
    return writtenAgain(value as Record<string, unknown>, names);
  const ranges: Forwarded['ranges'] = [];
  let before: TextMember | undefined;
  for (const member of outline.members) {
    if (names.includes(member.name)) {
      const last = ranges.at(-1);
      if (last && before && last[1] === before.end) last[1] = member.end;
      else ranges.push([member.start, member.end]);
    }
    before = member;
  }
  return { bytes, ranges };
}

/** Returns the members of these names, written by JSON.stringify. */
export function writtenAgain(value: Readonly<Record<string, unknown>>, names: readonly string[]): Forwarded {
  const text = JSON.stringify(Object.fromEntries(names.map((name) => [name, value[name]])));
  const bytes = Buffer.from(text);
  return { bytes, ranges: names.length ? [[1, bytes.length - 1]] : [] };
}

/** Returns a JSON object of the `written` members, at least one, and the forwarded ones. */
export function spliced({ bytes, ranges }: Forwarded, written: Readonly<Record<string, unknown>>): Buffer {
  const head = JSON.stringify(written);
  const headBytes = Buffer.byteLength(head) - 1;
  const length = ranges.reduce((sum, [start, end]) => sum + 1 + end - start, headBytes + 1);
  const body = Buffer.allocUnsafe(length);
  let at = body.write(head) - 1; // What follows takes the place of its bracket.
  for (const [start, end] of ranges) {
    body[at] = COMMA;
    at += 1 + bytes.copy(body, at + 1, start, end);
  }
  body[at] = CLOSE_OBJECT;
  return body;
}

const [COMMA, CLOSE_OBJECT] = [0x2c, 0x7d];
