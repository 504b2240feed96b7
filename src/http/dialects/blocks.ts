import type { Json } from '../../base/parse-json.ts';
import { LARGE_BYTES } from '../../router/apart.ts';
import { isObject, objectOf, parseObject } from './json.ts';
import { createObjectEnd } from './object-end.ts';

/** A part of an answer: a text, or the call of a tool. */
export type Block = {
  kind: 'reasoning' | 'text' | 'refusal' | 'call';
  index: number;
  /** The text so far; of a call, the JSON of its arguments. */
  readonly text: string;
  /** Of a call: its id, if the model server gave it one, and the name of the tool. */
  id: string | undefined;
  name: string;
};
export type BlockEvent =
  | { type: 'start'; block: Block }
  | { type: 'delta'; block: Block; text: string }
  | { type: 'stop'; block: Block };

/** Turns the deltas of a chat completion into blocks, one after the other. */
type BlockReader = {
  read(delta: unknown): BlockEvent[];
  end(): BlockEvent[];
  /** All blocks so far, in order. */
  blocks: readonly Block[];
};

/** A block that grows. */
type GrowingBlock = Block & {
  /** Appends text to it. */
  add(text: string): void;
  /** Returns whether it needs nothing more: of a call, whether its arguments are a JSON object; true for any other block. */
  isComplete(): boolean;
};

function createBlock(kind: Block['kind'], index: number, id?: string): GrowingBlock {
  const grown = createGrownText();
  const end = kind === 'call' ? createObjectEnd() : undefined;
  let hasObject: boolean | undefined;
  return {
    ...{ kind, index, id, name: '' },
    get text() {
      return grown.text();
    },
    add(text) {
      grown.add(text);
      end?.push(text);
    },
    isComplete() {
      if (!end) return true;
      if (!end.isClosed()) return false;
      // The arguments are parsed once, when their brackets are closed.
      hasObject ??= this.text.length > LARGE_BYTES || parseObject(this.text) !== undefined;
      return hasObject;
    },
  };
}

/** The part of a call in one delta: its id and name, where they are in it, and a piece of its arguments. */
type CallPiece = { id: string | undefined; name: string; text: string };

function pieceOf(call: Json): CallPiece {
  const { name, arguments: given } = objectOf(call.function);
  return {
    id: typeof call.id === 'string' && call.id ? call.id : undefined,
    name: typeof name === 'string' ? name : '',
    text: isObject(given) ? JSON.stringify(given) : typeof given === 'string' ? given : '',
  };
}

/**
 * Returns whether a piece of a call begins another one than `block`: some servers number all parallel calls 0, and some of
 * these give them no id. Others give each piece of a call an id of its own, and a name to the first (Poolside).
 */
function beginsAnother(block: GrowingBlock, piece: CallPiece): boolean {
  const isNamed = piece.name !== '';
  const hasOther = () => piece.text.trimStart().startsWith('{') && block.isComplete();
  if (piece.id !== undefined && block.id !== undefined) return piece.id !== block.id && (isNamed || hasOther());
  return isNamed && hasOther();
}

/**
 * Creates a reader of blocks. Chat completions may interleave the deltas of parallel calls, other APIs may not: the first open
 * block is passed on as it comes, the others once complete. A text is complete when something else begins, a call when its
 * arguments are a JSON object.
 */
export function createBlockReader(): BlockReader {
  const blocks: GrowingBlock[] = [];
  const calls = new Map<unknown, GrowingBlock>();
  /** All blocks, of which the `first` ones are complete. */
  let first = 0;
  let live: GrowingBlock | undefined;

  /** Passes on the blocks that are ready; at the end everything. */
  function advance(events: BlockEvent[], isEnd: boolean): void {
    for (let head = blocks[first]; head; head = blocks[first]) {
      if (head !== live) {
        if (head.kind === 'call' && !head.name && !isEnd) return; // The name may follow.
        live = head;
        events.push({ type: 'start', block: head });
        if (head.text) events.push({ type: 'delta', block: head, text: head.text });
      }
      if (!isEnd && (blocks.length === first + 1 || !head.isComplete())) return;
      events.push({ type: 'stop', block: head });
      first++;
    }
  }

  function begin(kind: Block['kind'], id?: string): GrowingBlock {
    const block = createBlock(kind, blocks.length, id);
    blocks.push(block);
    return block;
  }

  function add(events: BlockEvent[], block: GrowingBlock, text: string): void {
    if (!text || block.index < first) return;
    block.add(text);
    if (block === live) events.push({ type: 'delta', block, text });
  }

  function addText(events: BlockEvent[], kind: Block['kind'], text: string): void {
    if (!text) return;
    const last = blocks.length > first ? blocks.at(-1) : undefined;
    const block = last?.kind === kind ? last : begin(kind);
    advance(events, false);
    add(events, block, text);
  }

  function addCall(events: BlockEvent[], call: Json, position: number): void {
    const { id, name, text } = pieceOf(call);
    const key = call.index ?? position;
    let block = calls.get(key);
    if (!block || beginsAnother(block, { id, name, text })) {
      block = begin('call', id);
      calls.set(key, block);
    }
    block.id ??= id;
    block.name ||= name;
    advance(events, false);
    add(events, block, text);
  }

  return {
    blocks,
    read(delta) {
      const events: BlockEvent[] = [];
      const { content, refusal, reasoning, reasoning_content: thought, tool_calls: list } = objectOf(delta);
      addText(events, 'reasoning', textIn(thought) || textIn(reasoning)); // Some servers send it under both names.
      if (Array.isArray(content))
        for (const part of content) {
          addText(events, 'reasoning', textIn(objectOf(part).thinking));
          addText(events, 'text', textIn(objectOf(part).text));
        }
      else addText(events, 'text', textIn(content));
      addText(events, 'refusal', textIn(refusal));
      if (Array.isArray(list)) for (const [i, call] of list.entries()) addCall(events, objectOf(call), i);
      return events;
    },
    end() {
      const events: BlockEvent[] = [];
      advance(events, true);
      return events;
    },
  };
}

type GrownText = { add(piece: string): void; text(): string };

/** A text longer than this is flattened to one string. */
const END_LENGTH = 32 * 1024;

/**
 * Joins a text that comes in pieces. V8 represents a concatenation as a tree of strings: with millions of pieces, its next
 * garbage collection takes hundreds of milliseconds, and so does the first read of the whole.
 */
function createGrownText(): GrownText {
  let before = '';
  let end = '';
  return {
    add(piece) {
      end += piece;
      if (end.length < END_LENGTH) return;
      end.charCodeAt(0); // Flattens it to one string.
      before += end;
      end = '';
    },
    text: () => before + end,
  };
}

/** Returns a text, or the texts of a list of parts (Mistral's thinking has parts of its own). */
export function textIn(value: unknown): string {
  if (typeof value === 'string') return value;
  if (Array.isArray(value)) return value.map((it) => textIn(objectOf(it).text)).join('');
  return '';
}

/** Returns the blocks of a complete message. */
export function blocksOf(message: unknown): readonly Block[] {
  const reader = createBlockReader();
  reader.read(message);
  return reader.blocks;
}

/** Returns the only choice of a completion or a chunk: these APIs have no `n`. */
export function choiceOf(completion: unknown): Json {
  const { choices } = objectOf(completion);
  return Array.isArray(choices) ? objectOf(choices[0]) : {};
}

/** z.ai's own reasons to end an answer, and those of chat completions. */
const FINISH_REASONS = new Map<unknown, string>([
  ['model_context_window_exceeded', 'length'],
  ['sensitive', 'content_filter'],
]);

/** Returns the reason why a choice ended, in the words of chat completions. */
export const finishReasonOf = ({ finish_reason: reason }: Json): unknown => FINISH_REASONS.get(reason) ?? reason;
