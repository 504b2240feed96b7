import { readFileSync } from 'node:fs';
import sea from 'node:sea';

/** A text that ships with Purser: an asset of the executable, or a file beside the source. One road for both. */
export function assetText(name: string): string {
  return sea.isSea() ? sea.getAsset(name, 'utf8') : readFileSync(new URL(`../${name}`, import.meta.url), 'utf8');
}
