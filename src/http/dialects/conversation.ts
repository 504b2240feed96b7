import type { Json } from '../../base/parse-json.ts';

/** A piece of a message: text, or a part with an image or with a mark for a prompt cache. */
export type Piece = string | Json;

/** The messages of a chat completion, built in the order in which another API gives them. */
export type Conversation = {
  /**
   * System messages before the first other message are merged into one. Many templates allow no second one (Qwen's), so a later one is
   * a marked part of the user's turn. It stays at its place: the prompt before it may be cached.
   */
  system(pieces: readonly Piece[]): void;
  user(pieces: readonly Piece[]): void;
  /** The model's text, thoughts and calls, in one message until another role follows. */
  assistant(more: { piece?: Piece; refusal?: string; reasoning?: string; call?: ToolCall }): void;
  /**
   * The result of a call. Its images follow the results in a user message: a tool message holds only text. `marks` are
   * those of the result as a whole.
   */
  result(callId: string, pieces: readonly Piece[], marks?: Json): void;
  /** Returns the messages. Call it last. */
  finish(): Json[];
};
/** `arguments` is JSON. */
type ToolCall = { id: string; name: string; arguments: string; marks?: Json };

const SEPARATOR = '\n\n';
/** The marks of a later system message. Agents have them from Claude Code, and their models know them. */
const [REMINDER, REMINDER_END] = ['<system-reminder>', '</system-reminder>'];

export function createConversation(): Conversation {
  const messages: { message: Json; pieces: Piece[] | undefined }[] = [];
  let images: Json[] = [];
  /** The latest user's turn that has a system message. */
  let reminded: (typeof messages)[number] | undefined;
  const add = (message: Json, pieces?: readonly Piece[]) => {
    const added = { message, pieces: pieces && [...pieces] };
    messages.push(added);
    return added;
  };
  /** Adds the images of the results before any other message. */
  const showImages = () => {
    if (!images.length) return;
    add({ role: 'user' }, images);
    images = [];
  };
  /** Returns the user's turn at the end; a new one if there is none. */
  const userTurn = () => {
    const last = messages.at(-1);
    return last?.message.role === 'user' ? last : add({ role: 'user' }, []);
  };
  const append = (message: Json, member: string, text: string) => {
    message[member] = typeof message[member] === 'string' ? `${message[member]}${SEPARATOR}${text}` : text;
  };
  return {
    system(pieces) {
      showImages();
      const [first] = messages;
      if (!first) add({ role: 'system' }, pieces);
      else if (first.message.role === 'system' && messages.length === 1) first.pieces?.push(...pieces);
      else if (pieces.length) {
        reminded = userTurn();
        reminded.pieces?.push(REMINDER, ...pieces, REMINDER_END);
      }
    },
    user(pieces) {
      showImages();
      if (!pieces.length) return;
      if (reminded && reminded === messages.at(-1)) reminded.pieces?.push(...pieces);
      else add({ role: 'user' }, pieces);
    },
    assistant({ piece, refusal, reasoning, call }) {
      showImages();
      let last = messages.at(-1);
      if (last?.message.role !== 'assistant') last = add({ role: 'assistant' });
      const { message } = last;
      if (reasoning !== undefined) append(message, 'reasoning_content', reasoning);
      if (piece !== undefined) {
        last.pieces ??= [];
        last.pieces.push(piece);
      }
      if (refusal !== undefined) append(message, 'refusal', refusal);
      if (!call) return;
      const { id, marks, ...called } = call;
      message.tool_calls ??= [];
      (message.tool_calls as Json[]).push({ id, type: 'function', function: called, ...marks });
    },
    result(callId, pieces, marks = {}) {
      const shown = pieces.filter((it) => typeof it !== 'string' && it.type !== 'text') as Json[];
      if (shown.length) images.push(textPart(`Images in the result of the call ${callId}:`), ...shown);
      const texts = pieces.filter((it) => !shown.includes(it as Json));
      add({ role: 'tool', tool_call_id: callId, ...marks }, texts);
    },
    finish() {
      showImages();
      return messages.map(({ message: { role, ...rest }, pieces }) => ({
        role,
        content: pieces ? contentOf(pieces) : null,
        ...rest,
      }));
    },
  };
}

export const textPart = (text: string): Json => ({ type: 'text', text });

/** Returns the mark for a prompt cache of a part of a request, as a member for another part. */
export const marksOf = ({ cache_control: mark }: Json): Json => (mark ? { cache_control: mark } : {});

/** Returns a text with the marks of the part that it came from. */
export const markedText = (text: string, from: Json): Piece => {
  const marks = marksOf(from);
  return Object.keys(marks).length ? { ...textPart(text), ...marks } : text;
};

/** Returns text alone as a string, which every model server takes; with images, a list of parts. */
function contentOf(pieces: readonly Piece[]): string | Json[] {
  if (pieces.every((it) => typeof it === 'string')) return pieces.join(SEPARATOR);
  return pieces.map((it) => (typeof it === 'string' ? textPart(it) : it));
}

/** Returns a part with an image, by its address or as a data URL. */
export const imagePart = (url: string, marks: Json = {}, detail?: unknown): Json => ({
  type: 'image_url',
  image_url: { url, ...(typeof detail === 'string' ? { detail } : {}) },
  ...marks,
});
