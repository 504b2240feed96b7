// Preloaded with `--import` by the test scripts of package.json: importing Purser is most of the cost of a short test file.
// Measured on test/spend/spend.test.ts: 1.7 s of CPU without this file, 0.9 s with it.
import './pinned-node.mjs';
import asyncHooks from 'node:async_hooks';
import * as modules from 'node:module'; // Another Node has no `registerHooks`: a named import would fail with that error.
import { join, relative } from 'node:path';

// The only time limit of the tests, which run.ts sets. waiting.ts reports the waits of a file that is ended by it.
const { PURSER_TEST_MINUTES_MAX: minutesMax, NODE_TEST_CONTEXT: context } = process.env;
if (minutesMax && context?.startsWith('child'))
  setTimeout(() => process.kill(process.pid, 'SIGTERM'), Number(minutesMax) * 60_000).unref();

modules.enableCompileCache(join(import.meta.dirname, '../../node_modules/.cache/purser-tests'));

// Node 24 parses package.json again for every import, both the importing package's and the imported one's. That of drizzle-orm
// has 178 kB, and its modules import each other some hundred times. A package name means the same package in every file of the
// project.
const formatOf = (url) =>
  url.endsWith('.ts') ? 'module-typescript' : url.includes('/node_modules/drizzle-orm/') ? 'module' : undefined;
const packages = new Map();

modules.registerHooks({
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

// Node's runner follows every promise, only to say which test an uncaught exception belongs to: a fifth of the processor time of a
// test that makes many. Without them such an exception fails the file. It has to follow the rest: that says whose hooks are whose.
const { createHook } = asyncHooks;
asyncHooks.createHook = (callbacks) => createHook({ ...callbacks, trackPromises: false });
await import('node:test');
asyncHooks.createHook = createHook;

// A file that a run of test/run.ts has started.
const { PURSER_TEST_RUN: run } = process.env;
if (run && process.argv[1]) {
  const { noteProcessorTime } = await import('./run-directory.ts');
  noteProcessorTime(run, relative('.', process.argv[1]));
}
