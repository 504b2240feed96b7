import { randomUUID } from 'node:crypto';
import { createKept } from '../base/shares.ts';

/** The settings as they were when a change was shown, and as they would be. */
export type Preview = { file: string; before: string; after: string };

/** Maximum number of previews of one session, and of all. */
const PREVIEW_COUNT_MAX = { each: 2, all: 20 };

export type Previews = {
  /** Keeps a preview for this session and returns its id. */
  keep(sessionId: string, preview: Preview): string;
  /** Returns a preview of this session, once; undefined if it has made room for others or was taken. */
  take(sessionId: string, id: string): Preview | undefined;
};

/** Creates the memory of changes that were shown and wait for a confirmation: what is written is what was seen. */
export function createPreviews(): Previews {
  const all = new Map<string, Preview>();
  const kept = createKept<string>(PREVIEW_COUNT_MAX, (name) => all.delete(name));
  return {
    keep(sessionId, preview) {
      const id = randomUUID();
      const name = `${sessionId} ${id}`;
      all.set(name, preview);
      kept.keep(sessionId, name);
      return id;
    },
    take(sessionId, id) {
      const name = `${sessionId} ${id}`;
      const preview = all.get(name);
      all.delete(name);
      kept.drop(sessionId, name);
      return preview;
    },
  };
}
