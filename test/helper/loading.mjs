// Preloaded with `--import` by the test scripts of package.json: importing Purser is most of the cost of a short test file.
// Measured on test/spend/spend.test.ts: 1.7 s of CPU without this file, 0.9 s with it.
import { enableCompileCache, registerHooks } from 'node:module';
import { extname, join } from 'node:path';

enableCompileCache(join(import.meta.dirname, '../../node_modules/.cache/purser-tests'));

// Node 24 parses the importing package's package.json again for every import. The one of drizzle-orm has 178 kB, and its
// modules import each other some hundred times. What a module imports from beside it, under its own extension, is a module too.
const FORMATS = new Map([
  ['.js', 'module'],
  ['.mjs', 'module'],
  ['.ts', 'module-typescript'],
]);
registerHooks({
  resolve(specifier, context, next) {
    const format = specifier.startsWith('.') && FORMATS.get(extname(specifier));
    const isModule = format && context.conditions.includes('import') && context.parentURL?.endsWith(extname(specifier));
    if (!isModule) return next(specifier, context);
    return { url: new URL(specifier, context.parentURL).href, format, shortCircuit: true };
  },
});
