import { hash } from 'node:crypto';
import sea from 'node:sea';
import { gzipSync } from 'node:zlib';
import { assetBytes, assetText } from '../files/asset.ts';

/** A file that the pages load. Its path contains its hash, so that a browser may cache it for ever. */
export type Asset = { path: string; mime: string; bytes: Buffer; gzipped: Buffer };
/** The build's output in the executable, by name: base64 of the bytes and of the compressed bytes. */
type AssetList = Record<string, { mime: string; sha256: string; bytes: string; gzipped: string }>;

const ASSET_NAMES = ['page.css', 'page.js', 'icon.svg'] as const;
type AssetName = (typeof ASSET_NAMES)[number];
const FOLDER = 'src/ui/assets';
const MIME: Record<string, string> = {
  css: 'text/css; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  svg: 'image/svg+xml',
};

const assetOf = (name: string, mime: string, sha256: string, bytes: Buffer, gzipped: Buffer): Asset => {
  const [stem, ending] = name.split('.');
  return { path: `/assets/${stem}.${sha256.slice(0, 16)}.${ending}`, mime, bytes, gzipped };
};

/** Reads the assets: in the executable those made by the build, otherwise the files of the source tree. */
export function readAssets(): Record<AssetName, Asset> {
  if (sea.isSea()) {
    const manifest = JSON.parse(assetText('ui.json')) as AssetList;
    const bytes = (text: string) => Buffer.from(text, 'base64');
    const read = Object.entries(manifest).map(([name, it]) => [
      name,
      assetOf(name, it.mime, it.sha256, bytes(it.bytes), bytes(it.gzipped)),
    ]);
    return Object.fromEntries(read);
  }
  const read = ASSET_NAMES.map((name) => {
    const bytes = assetBytes(`${FOLDER}/${name}`);
    const mime = MIME[name.split('.')[1] as string] as string;
    return [name, assetOf(name, mime, hash('sha256', bytes, 'hex'), bytes, gzipSync(bytes))];
  });
  return Object.fromEntries(read);
}
