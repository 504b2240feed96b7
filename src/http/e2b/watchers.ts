import { randomUUID } from 'node:crypto';
import { whenStopping } from '../../base/health.ts';
import { Refusal } from '../../base/refusal.ts';
import { turnWhenDue } from '../../base/turn.ts';
import { watchEntries } from '../../compute/machine/entries.ts';
import { inTime } from '../../net/deadline.ts';
import { createConcurrency } from '../concurrency.ts';
import type { HttpApp } from '../endpoint.ts';
import type { Running } from './envd.ts';

/** Watches of directories: the events between views of one, and watches whose clients ask for those from time to time. */

/** Longer than any lease: the limit of a watch that has none. */
export const WATCH_SECONDS_MAX = 30 * 86_400;
/** The memory that each byte takes of what is seen of a watched directory, which is kept until the next change. */
export const WATCH_MEMORY = 4;
export const TYPE_BITS = 0o170000;
export const FILE = 0o100000;

/** Each keeps a connection to its machine. */
const COUNT_MAX = { resource: 16, wallet: 64 };
const BEGIN_MILLISECONDS = 60_000;
/** The most events that wait for their client. */
const EVENT_COUNT_MAX = 4096;
/** About what an event takes beside its name, as JSON. */
const EVENT_BYTES = 128;

/** An event of a watch, in E2B's form. */
type WatchEvent = { name: string; type: string };
/** Yields the events that lead from one view of a directory to the next. A view may be large, so other work runs in between. */
export async function* changesOf(
  before: ReadonlyMap<string, string>,
  now: ReadonlyMap<string, string>,
): AsyncGenerator<WatchEvent> {
  const part = (facts: string, at: number) => facts.split(' ')[at];
  const inodes = new Set<string | undefined>();
  for (const [name, facts] of now) {
    await turnWhenDue();
    if (!before.has(name)) inodes.add(part(facts, 0));
  }
  for (const [name, facts] of before) {
    await turnWhenDue();
    if (!now.has(name)) yield { name, type: inodes.has(part(facts, 0)) ? 'EVENT_TYPE_RENAME' : 'EVENT_TYPE_REMOVE' };
  }
  for (const [name, facts] of now) {
    await turnWhenDue();
    const earlier = before.get(name);
    if (earlier === facts) continue;
    const isNew = earlier === undefined || part(earlier, 0) !== part(facts, 0);
    if (earlier === undefined) yield { name, type: 'EVENT_TYPE_CREATE' };
    const content = (it: string) => it.split(' ').slice(2).join(' ');
    const isFile = (Number.parseInt(part(facts, 1) as string, 16) & TYPE_BITS) === FILE;
    if (isFile && (isNew ? part(facts, 2) !== '0' : content(facts) !== content(earlier as string)))
      yield { name, type: 'EVENT_TYPE_WRITE' };
    if (!isNew && part(earlier as string, 1) !== part(facts, 1)) yield { name, type: 'EVENT_TYPE_CHMOD' };
  }
}

type Watcher = { resourceId: string; take(): WatchEvent[]; end(): void };

export type Watchers = {
  /** Begins a watch; resolves with its id once later changes are seen. Throws the refusals of `watchEntries`, and `rate_limited`. */
  open(at: Running, order: { path: string; isRecursive: boolean }): Promise<string>;
  /** Returns the events since the last call. Throws `not_found`. */
  take(resourceId: string, id: string): WatchEvent[];
  /** Ends a watch. Throws `not_found`. */
  remove(resourceId: string, id: string): void;
};

/** Creates the register of watches that clients ask for their events. */
export function createWatchers(app: Pick<HttpApp, 'health' | 'memory' | 'tenantOf'>): Watchers {
  const watchers = new Map<string, Watcher>();
  const concurrency = createConcurrency(COUNT_MAX, 'watchers');

  function find(resourceId: string, id: string): Watcher {
    const found = watchers.get(id);
    if (found?.resourceId !== resourceId)
      throw new Refusal(
        'not_found',
        `There is no such watcher. One ends with its sandbox, with this server, and when more than ${EVENT_COUNT_MAX} events wait.`,
      );
    return found;
  }

  return {
    async open({ resource, backend, ref }, order) {
      const leave = concurrency.enter(resource.id, resource.walletId);
      const memory = app.memory.open(app.tenantOf(resource.walletId).treeId);
      const ending = new AbortController();
      const id = randomUUID();
      const begun = Promise.withResolvers<string>();
      let [events, bytes]: [WatchEvent[], number] = [[], 0];
      const watcher: Watcher = {
        resourceId: resource.id,
        take() {
          const taken = events;
          memory.release(bytes);
          [events, bytes] = [[], 0];
          return taken;
        },
        end: () => ending.abort(),
      };
      let before: Map<string, string> | undefined;
      let seen = 0;
      const see = async (now: Map<string, string>, size: number) => {
        memory.release(seen);
        seen = 0;
        memory.take(WATCH_MEMORY * size);
        seen = WATCH_MEMORY * size;
        for await (const event of changesOf(before ?? now, now)) {
          const more = JSON.stringify(event.name).length + EVENT_BYTES;
          if (events.length >= EVENT_COUNT_MAX) return ending.abort();
          memory.take(more);
          events.push(event);
          bytes += more;
        }
        if (!before) watchers.set(id, watcher);
        before = now;
        begun.resolve(id);
      };
      const stopping = whenStopping(app.health, () => ending.abort());
      watchEntries(backend, ref, { ...order, seconds: WATCH_SECONDS_MAX, signal: ending.signal }, see)
        .then(() => begun.reject(new Error('the watch was cut off')), begun.reject)
        .finally(() => {
          watchers.delete(id);
          stopping[Symbol.dispose]();
          memory.close();
          leave();
        });
      return inTime(begun.promise, BEGIN_MILLISECONDS, 'The start of a watch').catch((error) => {
        ending.abort();
        throw error;
      });
    },
    take: (resourceId, id) => find(resourceId, id).take(),
    remove(resourceId, id) {
      find(resourceId, id).end();
      watchers.delete(id);
    },
  };
}
