import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';

/**
 * Returns the mode and the bytes of everything in a data directory by its name there, with `recursive` also of what is below; what is
 * no file has no bytes. A running server writes a file under `FILE.new` and renames it: one that has gone since it was listed is left
 * out.
 */
export function filesOf(directory: string, recursive = false): Map<string, { mode: number; bytes: Buffer }> {
  const files = new Map<string, { mode: number; bytes: Buffer }>();
  for (const name of readdirSync(directory, { recursive, encoding: 'utf8' }))
    try {
      const stat = statSync(join(directory, name));
      const bytes = stat.isFile() ? readFileSync(join(directory, name)) : Buffer.alloc(0);
      files.set(name, { mode: stat.mode, bytes });
    } catch (error) {
      if (!name.endsWith('.new') || (error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
  return files;
}
