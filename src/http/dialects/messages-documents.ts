import { type Json, wordOf } from '../../base/parse-json.ts';
import { changeNested } from '../../router/nested.ts';
import { markedText, marksOf, type Piece, textPart } from './conversation.ts';
import { invalid, notOffered, objectOf, objectsOf, textOf } from './json.ts';
import { unreadAddress } from './unread.ts';

// Documents in Anthropic's Messages: text, or a PDF that only a server of this API reads. Agents put them into their
// conversation and send them again with each later turn, so refusing one would end the session.

/** Members through which a document is reached, and through which its own blocks are. */
export const DOCUMENT_PARTS = ['messages', 'content', 'source'];
const TYPE_LENGTH_SHOWN = 100;

/**
 * Returns a document for a chat completion: its text, or a sentence in place of what a model cannot read there. `piecesOf`
 * reads the blocks of a document that is made of blocks.
 */
export function piecesOfDocument(
  block: Json,
  where: string,
  piecesOf: (block: Json, where: string) => Piece[],
): Piece[] {
  const source = objectOf(block.source);
  const at = `${where}.source`;
  const head = [block.title, block.context].map(wordIn).filter((it) => it !== '');
  const text = (content: string): Piece[] => [markedText([...head, content].join('\n\n'), block)];
  switch (source.type) {
    case 'text':
      return text(textOf(source.data, `${at}.data`));
    case 'content': {
      if (typeof source.content === 'string') return text(source.content);
      const blocks = objectsOf(source.content, `${at}.content`);
      return [...head, ...blocks.flatMap((it, i) => piecesOf(it, `${at}.content.${i}`))];
    }
    case 'base64': {
      const data = textOf(source.data, `${at}.data`);
      const type =
        source.media_type === 'application/pdf' ? 'PDF' : wordOf(source.media_type).slice(0, TYPE_LENGTH_SHOWN);
      return text(`[A document, ${type}, ${Buffer.byteLength(data, 'base64')} bytes: this model cannot read it.]`);
    }
    case 'url':
      return text(unreadAddress(textOf(source.url, `${at}.url`)));
    case 'file':
      throw notOffered(at, 'a document by its id is not offered here: send it in the request.');
    default:
      throw invalid(`${at}.type`, 'must be base64, content, text or url');
  }
}

const wordIn = (value: unknown) => (typeof value === 'string' ? value : '');

/**
 * Returns a request in which sentences replace the documents that the model server would have to fetch: the same object if
 * there are none.
 */
export const withoutAddresses = (raw: Json): Json =>
  changeNested(raw, ['messages', 'content'], (it) => {
    const { type, source } = it;
    if (type !== 'document' || objectOf(source).type !== 'url') return it;
    return { ...textPart(unreadAddress(wordIn(objectOf(source).url))), ...marksOf(it) };
  });

/** Returns whether a request has a document whose tokens its bytes do not bound: a PDF has pages, and they become images. */
export function hasPages(request: Json): boolean {
  let isOne = false;
  changeNested(request, ['messages', 'content'], (it) => {
    if (it.type === 'document' && ['base64', 'url'].includes(wordOf(objectOf(it.source).type))) isOne = true;
    return it;
  });
  return isOne;
}
