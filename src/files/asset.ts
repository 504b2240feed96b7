import { readdirSync, readFileSync } from 'node:fs';
import sea from 'node:sea';

/** Reads a text that ships with Purser: an asset of the executable, or a file of the source tree. */
export function assetText(name: string): string {
  return sea.isSea() ? sea.getAsset(name, 'utf8') : readFileSync(beside(name), 'utf8');
}

/** Reads bytes that ship with Purser. */
export function assetBytes(name: string): Buffer {
  return sea.isSea() ? Buffer.from(sea.getRawAsset(name) as ArrayBuffer) : readFileSync(beside(name));
}

/** Lists a folder of the source tree. The executable has no folders. */
export const sourceNames = (folder: string): string[] => readdirSync(beside(`${folder}/`));

const beside = (name: string) => new URL(`../../${name}`, import.meta.url);
