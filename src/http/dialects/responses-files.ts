import { isUtf8 } from 'node:buffer';
import type { Json } from '../../base/parse-json.ts';
import { changeNested } from '../../router/nested.ts';
import { given, invalid, notOffered, textOf } from './json.ts';
import { unreadAddress } from './unread.ts';

// Files in OpenAI's Responses: a PDF or another document, in the body or at an address. Agents send them again with each later
// turn, so refusing one would end the session.

/** Members through which the parts of an input are reached. */
export const PARTS = ['input', 'content', 'output'];
const DATA_URL = /^data:([^;,]{0,100})[^,]{0,200};base64,/;
const NAME_LENGTH_SHOWN = 200;

/** Returns a file for a chat completion: its text, or a sentence in place of what a model cannot read there. */
export function textOfFile(part: Json, where: string): string {
  const { filename } = part;
  const { file_id: id, ...sources } = given({
    file_data: part.file_data,
    file_url: part.file_url,
    file_id: part.file_id,
  });
  if (id !== undefined) throw notOffered(where, 'an input_file by its id is not offered here: send it in the request.');
  const [[member = '', source] = [], second] = Object.entries(sources);
  if (!member || second) throw invalid(where, 'must have either file_data or file_url');
  const text = textOf(source, `${where}.${member}`);
  if (member === 'file_url') return unreadAddress(text);
  const name = typeof filename === 'string' && filename ? filename.slice(0, NAME_LENGTH_SHOWN) : undefined;
  const [head = '', type = 'application/pdf'] = DATA_URL.exec(text) ?? [];
  const bytes = Buffer.from(text.slice(head.length), 'base64');
  if (type.startsWith('text/') && isUtf8(bytes)) return [name, bytes.toString()].filter((it) => it).join('\n\n');
  const kind = type === 'application/pdf' ? 'PDF' : type;
  return `[${['A document', name, kind, `${bytes.length} bytes`].filter((it) => it).join(', ')}: this model cannot read it.]`;
}

/**
 * Returns a request in which sentences replace the files that the model server would have to fetch: the same object if there
 * are none.
 */
export const withoutFileAddresses = (raw: Json): Json =>
  changeNested(raw, PARTS, (it) =>
    it.type === 'input_file' && typeof it.file_url === 'string'
      ? { type: 'input_text', text: unreadAddress(it.file_url) }
      : it,
  );

/** Returns whether a request has a file, whose tokens its bytes do not bound: a PDF has pages, and they become images. */
export function hasFiles(request: Json): boolean {
  let isOne = false;
  changeNested(request, PARTS, (it) => {
    if (it.type === 'input_file') isOne = true;
    return it;
  });
  return isOne;
}
