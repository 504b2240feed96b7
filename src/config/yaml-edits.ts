import { isCollection, isPair, isSeq, type Node, type Pair, stringify, type YAMLMap, type YAMLSeq } from 'yaml';

/**
 * Changes of a YAML text at the places of its nodes. Everything else stays as it was written: `yaml`'s own Document would write a
 * price of 0.0000006 as 6e-7, and fold and indent the rest again.
 */
type YamlEdits = {
  replace(node: Node, value: string): void;
  /** Adds a pair at the end of a map that is not empty. */
  addPair(map: YAMLMap, key: string, value: unknown): void;
  /** Adds items, each on one line, at the end of the list `key` of a map; creates the list if it is missing. */
  addItems(map: YAMLMap, key: string, items: readonly unknown[]): void;
  apply(): string;
};

const onOneLine = (value: unknown) =>
  stringify(value, { collectionStyle: 'flow', lineWidth: 0, flowCollectionPadding: true }).trim();
const rangeOf = (node: unknown) => (node as Node).range as [number, number, number];

/** Creates the edits of `source`, the text that was parsed. */
export function createEdits(source: string): YamlEdits {
  const edits: { start: number; end: number; text: string }[] = [];
  const insert = (at: number, text: string) => edits.push({ start: at, end: at, text });

  const columnOf = (offset: number) => offset - (source.lastIndexOf('\n', offset - 1) + 1);
  function lineEnd(offset: number): number {
    const end = source.indexOf('\n', offset);
    return end === -1 ? source.length : end;
  }
  /** Returns the end of a node's text. A block may include the comments after it. */
  function endOf(node: unknown): number {
    if (!isCollection(node) || node.flow || !node.items.length) return rangeOf(node)[1];
    const last = node.items.at(-1);
    return isPair(last) ? endOf(last.value ?? last.key) : endOf(last);
  }
  const firstKey = (map: YAMLMap) => rangeOf((map.items[0] as Pair).key)[0];

  return {
    replace(node, value) {
      const [start, end] = rangeOf(node);
      edits.push({ start, end, text: value });
    },
    addPair(map, key, value) {
      const text = `${key}: ${onOneLine(value)}`;
      if (map.flow) return void insert(endOf((map.items.at(-1) as Pair).value), `, ${text}`);
      insert(lineEnd(endOf(map)), `\n${' '.repeat(columnOf(firstKey(map)))}${text}`);
    },
    addItems(map, key, items) {
      const list = map.get(key, true) as YAMLSeq | undefined;
      const texts = items.map(onOneLine);
      const inBlock = (column: number) => texts.map((it) => `\n${' '.repeat(column)}- ${it}`).join('');
      const column = columnOf(firstKey(map));
      if (isSeq(list) && list.items.length) {
        if (list.flow) insert(endOf(list.items.at(-1)), `, ${texts.join(', ')}`);
        else insert(lineEnd(endOf(list)), inBlock(columnOf(source.lastIndexOf('-', rangeOf(list.items[0])[0]))));
      } else if (map.flow) {
        if (list) this.replace(list, onOneLine(items));
        else this.addPair(map, key, items);
      } else if (list) {
        const [start, end] = rangeOf(list);
        edits.push({ start: source.slice(0, start).trimEnd().length, end, text: inBlock(column + 2) });
      } else insert(lineEnd(endOf(map)), `\n${' '.repeat(column)}${key}:${inBlock(column + 2)}`);
    },
    apply() {
      let text = '';
      let at = 0;
      for (const { start, end, text: fresh } of edits.toSorted((a, b) => a.start - b.start)) {
        text += source.slice(at, start) + fresh;
        at = end;
      }
      return text + source.slice(at);
    },
  };
}
