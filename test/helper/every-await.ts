// Imported before any module of Purser, which must then be imported by `import()`: modules loaded from src get generators in
// place of their async functions, so that each of their awaits can be made to fail.
import { registerHooks } from 'node:module';
import { relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { transformSync } from 'esbuild';

const ROOT = new URL('../../', import.meta.url);

/** The error with which an await or a read fails. */
export class Injected extends Error {}

type Plan = { failAt: number; reached: number; at: string | undefined };
let plan: Plan | undefined;

/** Makes the `failAt`-th step of all that runs fail, and only that one. Returns its state. */
export function failAt(number: number): Plan {
  plan = { failAt: number, reached: 0, at: undefined };
  return plan;
}

/** Ends the injection: no further step fails. */
export function failNowhere(): void {
  plan = undefined;
}

/** Counts a step. Returns the error with which it must fail, if any. */
export function step(where: () => string): Injected | undefined {
  if (!plan || ++plan.reached !== plan.failAt) return undefined;
  plan.at = where();
  return new Injected(`injected at ${plan.at}`);
}

type Body = (this: unknown, ...args: unknown[]) => Generator<unknown, unknown, unknown>;

/** Returns the name of the function that called `__async`, from a stack. */
const nameIn = (stack = '') => /__async[^\n]*\n\s+at (?:async )?(\S+) \(/.exec(stack)?.[1] ?? '';

/** Modules that run beside requests: their steps would be counted among those of requests. */
const ASIDE = /^src\/(db\/disk-reserve|files\/durable-file|books\/.*)\.ts$/;

/** Runs an async function of a module that was turned into a generator. A failing await has waited before: its work is done. */
function runner(file: string) {
  return function __async(self: unknown, args: ArrayLike<unknown> | null, body: Body) {
    return new Promise((resolve, reject) => {
      const begun = plan ? new Error('begun').stack : undefined;
      const running = body.apply(self, Array.from(args ?? []));
      let count = 0;
      const where = () => `${file} ${nameIn(begun)} await ${count}`;
      const go = (how: 'next' | 'throw', value?: unknown): void => {
        let reached: IteratorResult<unknown, unknown>;
        try {
          reached = running[how](value);
        } catch (error) {
          reject(error);
          return;
        }
        if (reached.done) {
          resolve(reached.value);
          return;
        }
        count++;
        const fault = ASIDE.test(file) ? undefined : step(where);
        const waited = Promise.resolve(reached.value);
        if (fault)
          waited.then(
            () => go('throw', fault),
            () => go('throw', fault),
          );
        else
          waited.then(
            (it) => go('next', it),
            (error) => go('throw', error),
          );
      };
      go('next');
    });
  };
}
Object.assign(globalThis, { runnerOf: runner });

registerHooks({
  load(url, context, next) {
    if (!url.startsWith(new URL('src/', ROOT).href) || !url.endsWith('.ts')) return next(url, context);
    const { source } = next(url, context);
    const { code } = transformSync(source?.toString() ?? '', {
      loader: 'ts',
      format: 'esm',
      target: 'esnext',
      supported: { 'async-await': false, 'for-await': false, 'async-generator': false, 'top-level-await': true },
      tsconfigRaw: { compilerOptions: { verbatimModuleSyntax: true } },
    });
    const file = relative(fileURLToPath(ROOT), fileURLToPath(url));
    const replaced = code.replace(
      /^var __async = [\s\S]*?^\};$/m,
      `var __async = globalThis.runnerOf(${JSON.stringify(file)});`,
    );
    return { format: 'module', source: replaced, shortCircuit: true };
  },
});
