import { existsSync } from 'node:fs';
import { recallBounds } from '../chat/learn.ts';
import { openDatabase } from '../db/open.ts';
import { files } from '../files/data-directory.ts';
import type { Catalogue } from '../router/catalogue.ts';

/** Gives every route what the books of a data directory know of it, also while a server runs; nothing where there are none. */
export function readLearned(dataDirectory: string, catalogue: Catalogue): void {
  const { database } = files(dataDirectory);
  if (!existsSync(database)) return;
  const { client, read } = openDatabase(database, { migrate: false, readonly: true });
  try {
    recallBounds(read, catalogue);
  } finally {
    client.close();
  }
}
