import { hash } from 'node:crypto';
import sea from 'node:sea';
import { gunzipSync } from 'node:zlib';
import { assetBytes } from './asset.ts';

/** Names of V8's code caches of the bundles, made when they are built: no two builds have the same. */
const CODE_CACHE = /\.cache$/;

/** Returns the SHA-256 of each part by name, one line each, in the form of `sha256sum`. */
export function bundleSums(names: readonly string[], bytesOf: (name: string) => Buffer): string {
  return [...names]
    .sort()
    .map((name) => `${hash('sha256', bytesOf(name))}  ${name}\n`)
    .join('');
}

/**
 * Returns the SHA-256 over the sums of all parts of a build except the runtime and V8's code cache, computed from this
 * executable. Two builds of the same sources have the same. Undefined where Purser runs from its sources.
 */
export function bundleDigest(): string | undefined {
  if (!sea.isSea()) return undefined;
  const names = sea.getAssetKeys().filter((name) => !CODE_CACHE.test(name));
  return hash('sha256', bundleSums(names, assetBytes));
}

/** A part by another author, its licence by SPDX, and the texts that it requires to be kept. */
export type Notice = { name: string; version: string; license: string; text: string };

/** Returns the notices of all parts inside. Throws where Purser runs from its sources: the build collects them. */
export function notices(): Notice[] {
  if (!sea.isSea()) throw new Error('The notices are in the executable only: the build collects them.');
  return JSON.parse(gunzipSync(assetBytes('licenses.json.gz')).toString()) as Notice[];
}
