import { registerHooks } from 'node:module';

/**
 * Loaded before Purser's source (`node --import`), this is a build with synchronous=NORMAL: the proof that the test of the
 * power cut tells the two apart. There is no such setting.
 */
const CHANGES = [
  ["client.pragma('synchronous = FULL')", "client.pragma('synchronous = NORMAL')"],
  ["client.pragma('synchronous', { simple: true }) !== 2n", "client.pragma('synchronous', { simple: true }) !== 1n"],
];

registerHooks({
  load(url, context, next) {
    const loaded = next(url, context);
    if (!url.endsWith('/src/db/open.ts')) return loaded;
    let source = loaded.source.toString();
    for (const [full, normal] of CHANGES) {
      if (source.split(full).length !== 2) throw new Error(`src/db/open.ts does not say once: ${full}`);
      source = source.replace(full, normal);
    }
    return { ...loaded, source };
  },
});
