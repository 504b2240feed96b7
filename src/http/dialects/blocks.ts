import { LARGE_BYTES } from '../../router/apart.ts';
import { isObject, type Json, objectOf, parseObject } from './json.ts';
import { createObjectEnd, type ObjectEnd } from './object-end.ts';

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

/**
 * Creates a reader of blocks. Chat completions may interleave the deltas of parallel calls, and other APIs may not: the
 * first open block is passed on as it comes, the others wait until it is complete. A text is complete when something
 * else begins, a call when its arguments are a JSON object.
 */
export function createBlockReader(): BlockReader {
  const blocks: Block[] = [];
  const calls = new Map<unknown, Block>();
  /** All blocks, of which the `first` ones are complete. */
  let first = 0;
  let live: Block | undefined;
  const texts = new Map<Block, GrownText>();
  /** The end of each call's arguments and, once it is found, whether they are an object. */
  const ends = new Map<Block, { end: ObjectEnd; isObject?: boolean }>();

  /** Returns whether a call has all its arguments. They are parsed once, when their brackets are closed. */
  const hasObject = (call: Block): boolean => {
    const followed = ends.get(call);
    if (!followed?.end.isClosed()) return false;
    followed.isObject ??= call.text.length > LARGE_BYTES || parseObject(call.text) !== undefined;
    return followed.isObject;
  };
  const isComplete = (block: Block) => block.kind !== 'call' || hasObject(block);

  /** Passes on the blocks that are ready; at the end everything. */
  function advance(events: BlockEvent[], isEnd: boolean): void {
    for (let head = blocks[first]; head; head = blocks[first]) {
      if (head !== live) {
        if (head.kind === 'call' && !head.name && !isEnd) return; // The name may follow.
        live = head;
        events.push({ type: 'start', block: head });
        if (head.text) events.push({ type: 'delta', block: head, text: head.text });
      }
      if (!isEnd && (blocks.length === first + 1 || !isComplete(head))) return;
      events.push({ type: 'stop', block: head });
      first++;
    }
  }

  function begin(kind: Block['kind'], id?: string, name = ''): Block {
    const grown = createGrownText();
    const block: Block = {
      ...{ kind, index: blocks.length, id, name },
      get text() {
        return grown.text();
      },
    };
    blocks.push(block);
    texts.set(block, grown);
    if (kind === 'call') ends.set(block, { end: createObjectEnd() });
    return block;
  }

  function add(events: BlockEvent[], block: Block, text: string): void {
    if (!text || block.index < first) return;
    texts.get(block)?.add(text);
    ends.get(block)?.end.push(text);
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
    const { name, arguments: given } = objectOf(call.function);
    const key = call.index ?? position;
    const id = typeof call.id === 'string' && call.id ? call.id : undefined;
    const text = isObject(given) ? JSON.stringify(given) : typeof given === 'string' ? given : '';
    let block = calls.get(key);
    // Some servers number all parallel calls 0, and some of these give them no id.
    const isAnother = (it: Block) =>
      id !== undefined && it.id !== undefined
        ? id !== it.id
        : Boolean(name) && text.trimStart().startsWith('{') && hasObject(it);
    if (!block || isAnother(block)) {
      block = begin('call', id);
      calls.set(key, block);
    }
    block.id ??= id;
    if (!block.name && typeof name === 'string') block.name = name;
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
