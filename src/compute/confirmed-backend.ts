import type { Backend } from './backend.ts';

/**
 * Returns a backend that does the same as this one, and awaits `confirm` before it ends or extends a machine. What is to be done
 * rests on rows and lists that were read before: on a disk that another server has taken over they mean nothing, and the machine
 * may be that server's.
 */
export function confirmedBackend(backend: Backend, confirm: () => Promise<void>): Backend {
  const after =
    <A extends unknown[], R>(call: (...args: A) => Promise<R>) =>
    async (...args: A): Promise<R> => {
      await confirm();
      return call(...args);
    };
  return new Proxy(backend, {
    get(target, name) {
      // The calls of this moment: one that wraps another must not come back to itself.
      const { destroy, extend, strangers } = target;
      if (name === 'destroy') return after(destroy);
      if (name === 'extend') return after(extend);
      if (name === 'strangers' && strangers?.end) return { ...strangers, end: after(strangers.end) };
      return Reflect.get(target, name, target);
    },
  });
}
