import { readdirSync, readFileSync } from 'node:fs';
import sea from 'node:sea';

/** A text that ships with Purser: an asset of the executable, or a file beside the source. One road for both. */
export function assetText(name: string): string {
  return sea.isSea() ? sea.getAsset(name, 'utf8') : readFileSync(beside(name), 'utf8');
}

/** Bytes that ship with Purser. */
export function assetBytes(name: string): Buffer {
  return sea.isSea() ? Buffer.from(sea.getRawAsset(name) as ArrayBuffer) : readFileSync(beside(name));
}

/** The names in a folder beside the source. The executable has none: its assets are texts. */
export const sourceNames = (folder: string): string[] => readdirSync(beside(`${folder}/`));

const beside = (name: string) => new URL(`../../${name}`, import.meta.url);
