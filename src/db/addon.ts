import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import sea from 'node:sea';

let loaded: object | undefined;

/**
 * The SQLite addon for better-sqlite3's `nativeBinding`. From source, undefined: the package finds its own prebuilt file.
 * In the executable a `.node` file cannot be loaded from inside, so the asset is written once into `directory` under its
 * hash, and each later copy is checked by that hash before it is loaded (design, section 5).
 */
export function sqliteAddon(directory: string): object | undefined {
  if (!sea.isSea()) return undefined;
  if (loaded) return loaded;
  const bytes = Buffer.from(sea.getRawAsset('sqlite.node') as ArrayBuffer);
  const hash = createHash('sha256').update(bytes).digest('hex');
  const folder = join(directory, 'lib');
  const file = join(folder, `sqlite-${hash}.node`);
  const intact = existsSync(file) && createHash('sha256').update(readFileSync(file)).digest('hex') === hash;
  if (!intact) {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const fresh = `${file}.${process.pid}`;
    writeFileSync(fresh, bytes, { mode: 0o500 });
    renameSync(fresh, file);
  }
  const module = { exports: {} };
  process.dlopen(module, file);
  loaded = module.exports;
  return loaded;
}
