// Preloaded with `--import` by the test scripts of package.json: importing Purser is most of the cost of a short test file.
// Measured on test/spend/spend.test.ts: 1.7 s of CPU without this file, 0.9 s with it.
import { enableCompileCache, registerHooks } from 'node:module';
import { join } from 'node:path';

enableCompileCache(join(import.meta.dirname, '../../node_modules/.cache/purser-tests'));

// Node 24 parses package.json again for every import, both the importing package's and the imported one's. The one of
// drizzle-orm has 178 kB, and its modules import each other some hundred times. A package is the same one for every file of the
// project.
const formatOf = (url) =>
  url.endsWith('.ts') ? 'module-typescript' : url.includes('/node_modules/drizzle-orm/') ? 'module' : undefined;
const packages = new Map();

registerHooks({
  resolve(specifier, context, next) {
    const { parentURL, conditions } = context;
    if (!parentURL || !conditions.includes('import')) return next(specifier, context);
    if (specifier.startsWith('.')) {
      const { href } = new URL(specifier, parentURL);
      const format = formatOf(href);
      return format ? { url: href, format, shortCircuit: true } : next(specifier, context);
    }
    if (specifier.includes(':') || parentURL.includes('/node_modules/')) return next(specifier, context);
    if (!packages.has(specifier)) packages.set(specifier, { ...next(specifier, context), shortCircuit: true });
    return packages.get(specifier);
  },
});
