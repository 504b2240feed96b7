import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, renameSync } from 'node:fs';
import { dirname, join } from 'node:path';
import sea from 'node:sea';
import Client from 'better-sqlite3';
import { writeFresh } from '../files/durable-file.ts';

let loaded: object | undefined;

/** Opens an SQLite file without any of our settings. `directory` is where the addon gets unpacked. */
export function connect(file: string, options: Client.Options = {}, directory = dirname(file)): Client.Database {
  const addon = sqliteAddon(directory);
  return new Client(file, { ...options, ...(addon ? { nativeBinding: addon as unknown as string } : {}) });
}

/**
 * Returns the SQLite addon for better-sqlite3's `nativeBinding`, or undefined when running from source, where the package finds its
 * own prebuilt file. A `.node` file cannot be loaded from inside the executable, so the asset is written into `directory` once
 * under its hash; later starts check that copy by its hash before loading it (design, section 5), and replace one that they cannot
 * read.
 */
function sqliteAddon(directory: string): object | undefined {
  if (!sea.isSea()) return undefined;
  if (loaded) return loaded;
  const bytes = Buffer.from(sea.getRawAsset('sqlite.node') as ArrayBuffer);
  const hash = createHash('sha256').update(bytes).digest('hex');
  const folder = join(directory, 'lib');
  const file = join(folder, `sqlite-${hash}.node`);
  if (!isIntact(file, hash)) {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    // Each process writes its own. In a container all have one number: what an earlier one has left must not be in the way.
    renameSync(writeFresh(`${file}.${process.pid}`, bytes, { mode: 0o500 }), file);
  }
  const module = { exports: {} };
  process.dlopen(module, file);
  loaded = module.exports;
  return loaded;
}

function isIntact(file: string, hash: string): boolean {
  try {
    return createHash('sha256').update(readFileSync(file)).digest('hex') === hash;
  } catch {
    return false; // Missing, or not readable by this user.
  }
}
