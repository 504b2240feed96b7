import { Script } from 'node:vm';
import { assetBytes } from './asset.ts';

/**
 * Runs a bundle of packages that lies in the executable beside the main one (`APART` in build.mjs), and returns its exports.
 * `require` is for Node's own modules.
 */
export function readBundle(name: string, require: NodeJS.Require): Record<string, unknown> {
  const module = { exports: {} };
  const script = new Script(assetBytes(name).toString('latin1'), { filename: name });
  script.runInThisContext()(require, module, module.exports, name, '.');
  return module.exports;
}
