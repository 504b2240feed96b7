import { isObject, type Json, objectOf, parseObject } from './json.ts';

/** A part of an answer: a text, or the call of a tool. */
export type Block = {
  kind: 'reasoning' | 'text' | 'refusal' | 'call';
  index: number;
  /** The text so far; of a call, the JSON of its arguments. */
  text: string;
  /** Of a call: its id, if the model server gave it one, and the name of the tool. */
  id: string | undefined;
  name: string;
};
export type BlockEvent =
  | { type: 'start'; block: Block }
  | { type: 'delta'; block: Block; text: string }
  | { type: 'stop'; block: Block };

/** Turns the deltas of a chat completion into blocks, one after the other. */
export type BlockReader = {
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
  let open: Block[] = [];
  let live: Block | undefined;
  /** The length of the arguments that were last found to be incomplete. */
  let incompleteLength = -1;

  const isComplete = (block: Block) => {
    if (block.kind !== 'call') return true;
    if (block.text.length === incompleteLength) return false;
    if (parseObject(block.text)) return true;
    incompleteLength = block.text.length;
    return false;
  };

  /** Passes on what can be passed on; at the end everything. */
  function advance(events: BlockEvent[], isEnd: boolean): void {
    for (let head = open[0]; head; head = open[0]) {
      if (head !== live) {
        if (head.kind === 'call' && !head.name && !isEnd) return; // The name may still come.
        live = head;
        incompleteLength = -1;
        events.push({ type: 'start', block: head });
        if (head.text) events.push({ type: 'delta', block: head, text: head.text });
      }
      if (!isEnd && (open.length === 1 || !isComplete(head))) return;
      events.push({ type: 'stop', block: head });
      open = open.slice(1);
    }
  }

  function begin(kind: Block['kind'], id?: string, name = ''): Block {
    const block: Block = { kind, index: blocks.length, text: '', id, name };
    blocks.push(block);
    open.push(block);
    return block;
  }

  function add(events: BlockEvent[], block: Block, text: string): void {
    if (!text || !open.includes(block)) return;
    block.text += text;
    if (block === live) events.push({ type: 'delta', block, text });
  }

  function addText(events: BlockEvent[], kind: Block['kind'], text: string): void {
    if (!text) return;
    const last = open.at(-1);
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
        : Boolean(name) && text.trimStart().startsWith('{') && parseObject(it.text) !== undefined;
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

/** Returns a text, or the texts of a list of parts (Mistral's thinking has parts of its own). */
function textIn(value: unknown): string {
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
