/** A part of a path: whether a symbolic link is there, and what is below it. */
type Node = { isLink: boolean; below: Map<string, Node> | undefined };

/** The memory of one part of a path, beside its name. */
const NODE_BYTES = 256;

/** Symbolic links by the parts of their paths, so that finding one on a path takes one look for each part. */
type LinkTree = {
  /** Adds a link. Returns false where `take` has no memory left for it. */
  add(path: string): boolean;
  /** Removes the link at a path, if there is one. */
  remove(path: string): void;
  /** Returns the shortest beginning of a path, or the path itself, at which a link is. */
  find(path: string): string | undefined;
};

/** Creates a tree without links. `take` counts its memory, and returns false where none is left. */
export function createLinkTree(take: (bytes: number) => boolean): LinkTree {
  const root: Node = { isLink: false, below: undefined };

  /** Goes down a path as far as there are nodes. Returns the last one if that is the path's end. */
  function walk(path: string, isOver: (node: Node, length: number) => boolean): Node | undefined {
    let node: Node | undefined = root;
    for (let at = 0; at <= path.length; ) {
      const slash = path.indexOf('/', at);
      const end = slash < 0 ? path.length : slash;
      node = node.below?.get(path.slice(at, end));
      if (!node || isOver(node, end)) return node;
      at = end + 1;
    }
    return node;
  }

  return {
    add(path) {
      let node = root;
      for (const part of path.split('/')) {
        node.below ??= new Map();
        let next = node.below.get(part);
        if (!next) {
          if (!take(part.length + NODE_BYTES)) return false;
          next = { isLink: false, below: undefined };
          node.below.set(part, next);
        }
        node = next;
      }
      node.isLink = true;
      return true;
    },
    remove(path) {
      const node = walk(path, () => false);
      if (node) node.isLink = false;
    },
    find(path) {
      let length: number | undefined;
      walk(path, (node, end) => {
        if (node.isLink) length = end;
        return node.isLink;
      });
      return length === undefined ? undefined : path.slice(0, length);
    },
  };
}
