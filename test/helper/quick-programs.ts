import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { temporaryDirectory } from '../ledger/books.ts';

const LOADING = join(import.meta.dirname, 'loading.mjs');

/**
 * Until the test ends, a server in this process starts Purser's own programs from their source as tests are started: with
 * compiled modules (loading.mjs). A `ledger verify` takes 0.4 s of a processor then, and 1.8 s otherwise.
 */
export function startProgramsQuickly(t: Pick<TestContext, 'after'>): void {
  const { execPath } = process;
  const file = join(temporaryDirectory(t), 'node');
  writeFileSync(file, `#!/bin/sh\nexec '${execPath}' --import='${LOADING}' "$@"\n`, { mode: 0o755 });
  process.execPath = file;
  t.after(() => {
    process.execPath = execPath;
  });
}
