import type { Result, Router } from 'hono/router';
import { TrieRouter } from 'hono/router/trie-router';

/**
 * Creates Hono's router, with a memory of its results for the paths of the table without parameters: it would search, sort and make
 * lists for each request. There the first handler alone counts, and each handler of the table answers. The memory is bounded by the
 * paths and by the methods of Node's parser.
 */
export function createRouter<T>(): Router<T> {
  const router = new TrieRouter<T>();
  const fixed = new Map<string, Map<string, Result<T>>>();
  return {
    name: 'fixed paths',
    add(method, path, handler) {
      router.add(method, path, handler);
      if (!/[:*]/.test(path)) fixed.set(path, new Map());
    },
    match(method, path) {
      const known = fixed.get(path);
      if (!known) return router.match(method, path);
      let found = known.get(method);
      if (!found) {
        found = [router.match(method, path)[0].slice(0, 1)] as Result<T>;
        known.set(method, found);
      }
      return found;
    },
  };
}
