import type { Backend, Guest } from './backend.ts';

/**
 * Returns a backend that does the same as this one, and awaits `confirm` before it ends or extends a machine, or removes a
 * snapshot. These orders rest on rows and lists that were read before: on a disk that another server has taken over they mean
 * nothing, and the machine may be that server's.
 */
export function confirmedBackend(backend: Backend, confirm: () => Promise<void>): Backend {
  const after =
    <A extends unknown[], R>(call: (...args: A) => Promise<R>) =>
    async (...args: A): Promise<R> => {
      await confirm();
      return call(...args);
    };
  const confirmedGuest = (guest: Guest) =>
    new Proxy(guest, {
      get(target, name) {
        const value: unknown = Reflect.get(target, name, target);
        const { snapshots } = target;
        const hasSome = name === 'snapshots' && typeof snapshots === 'object';
        return hasSome ? { ...snapshots, remove: after(snapshots.remove) } : value;
      },
    });
  return new Proxy(backend, {
    get(target, name) {
      // The calls of this moment: one that wraps another must not come back to itself.
      const { destroy, extend, strangers } = target;
      if (name === 'destroy') return after(destroy);
      if (name === 'extend') return after(extend);
      if (name === 'guest') return confirmedGuest(target.guest);
      if (name === 'strangers' && strangers?.end) return { ...strangers, end: after(strangers.end) };
      return Reflect.get(target, name, target);
    },
  });
}
