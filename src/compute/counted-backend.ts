import { Refusal } from '../base/refusal.ts';
import type { Backend, Guest } from './backend.ts';

/** Called for every call of a backend with `ok`, `failed`, the kind of another outcome, or the code of a refusal. */
export type BackendCalled = (call: string, code: string, seconds: number) => void;

const CALLS = new Set<string | symbol>([
  'identity',
  'quote',
  'create',
  'find',
  'inspect',
  'extend',
  'destroy',
  'listOwned',
  'prove',
  'usage',
  'exec',
  'upload',
  'session',
] satisfies (keyof Backend | keyof Guest)[]);

/** Returns a backend that does the same as this one, and reports how each call ended and how long it took. */
export const countedBackend = (backend: Backend, called: BackendCalled): Backend => counted(backend, called);

function counted<T extends Backend | Guest>(calls: T, called: BackendCalled): T {
  return new Proxy(calls, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name, target);
      if (name === 'guest') return counted(value as Guest, called);
      if (typeof value !== 'function' || !CALLS.has(name)) return value;
      return async (...args: unknown[]) => {
        const began = performance.now();
        const tell = (code: string) => called(name as string, code, (performance.now() - began) / 1000);
        try {
          const result: unknown = await Reflect.apply(value, target, args);
          tell(codeOf(name, result));
          return result;
        } catch (error) {
          tell(error instanceof Refusal ? error.code : 'failed');
          throw error;
        }
      };
    },
  });
}

/** Returns the code of a call's result: some outcomes of `create` and `extend` are no error of the call. */
function codeOf(name: string | symbol, result: unknown): string {
  const { kind } = (name === 'create' || name === 'extend' ? result : {}) as { kind?: string };
  return kind === undefined || kind === 'created' || kind === 'done' ? 'ok' : kind;
}
