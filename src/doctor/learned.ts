import { existsSync } from 'node:fs';
import { openBooks } from '../books/open.ts';
import { recallBounds } from '../chat/learn.ts';
import { files, refuseOtherOwner } from '../files/data-directory.ts';
import type { Catalogue } from '../router/catalogue.ts';

/**
 * Loads the learned bounds of every route from a data directory's database, if there is one. A server may be running. Throws
 * OtherOwnerError if the directory belongs to another user.
 */
export function readLearned(dataDirectory: string, catalogue: Catalogue, now = 0): void {
  const { database } = files(dataDirectory);
  // Checked first: to another user the directory would look empty.
  if (existsSync(dataDirectory)) refuseOtherOwner(dataDirectory);
  if (!existsSync(database)) return;
  using books = openBooks(database, { access: 'read' });
  recallBounds(books.read, catalogue, now);
}
