import * as v from 'valibot';
import { Refusal } from '../../base/refusal.ts';
import {
  type Entry,
  listEntries,
  makeDirectory,
  moveEntry,
  removeEntry,
  statEntry,
  watchEntries,
} from '../../compute/machine/entries.ts';
import { text, wholeNumber } from '../../wire/parts.ts';
import type { Allowance } from '../memory-quota.ts';
import { answerStream, ConnectFault, readMessage, timeLimitOf, writeList } from './connect.ts';
import { type Running, runningOf } from './envd.ts';
import { callInto, ownerOf, type Rpc, throwLost, unary } from './rpc.ts';
import { changesOf, FILE, TYPE_BITS, WATCH_MEMORY, WATCH_SECONDS_MAX } from './watchers.ts';

/** The service `filesystem.Filesystem` of E2B's agent. */

const SECONDS = 60;
const Path = text(1, 4096);
const OfPath = v.looseObject({ path: Path });
const ToWatch = v.looseObject({ path: Path, recursive: v.optional(v.boolean(), false) });
const OfWatcher = v.looseObject({ watcherId: v.string() });

const TYPES = new Map<number, [name: string, letter: string]>([
  [FILE, ['FILE_TYPE_FILE', '-']],
  [0o040000, ['FILE_TYPE_DIRECTORY', 'd']],
  [0o120000, ['FILE_TYPE_SYMLINK', 'l']],
]);
const NEVER = new AbortController().signal;
const PERMISSIONS = ['r', 'w', 'x', 'r', 'w', 'x', 'r', 'w', 'x'];

/** The Unix seconds of the years 1 to 9999, which RFC 3339 can write. A file may have any time. */
const TIME = { min: -62_135_596_800, max: 253_402_300_799 };

/** Renders an entry as E2B's agent does. */
function entryOf({ path, mode, size, owner, group, modified, target }: Entry): object {
  const [type, letter] = TYPES.get(mode & TYPE_BITS) ?? ['FILE_TYPE_UNSPECIFIED', '?'];
  const bits = PERMISSIONS.map((it, at) => (mode & (1 << (8 - at)) ? it : '-')).join('');
  return {
    name: path.slice(path.lastIndexOf('/') + 1),
    type,
    path,
    size: String(size),
    mode: mode & 0o7777,
    permissions: `${letter}${bits}`,
    owner,
    group,
    modifiedTime: new Date(Math.min(Math.max(modified, TIME.min), TIME.max) * 1000).toISOString(),
    ...(target === undefined ? {} : { symlinkTarget: target }),
  };
}

async function* shown(entries: AsyncIterable<Entry>): AsyncGenerator<object> {
  for await (const it of entries) yield entryOf(it);
}

/** Turns a call on the machine of a running sandbox into a handler. */
const onMachine = <S extends v.GenericSchema>(
  schema: S,
  run: (at: Running, message: v.InferOutput<S>, share: Allowance) => Promise<object>,
): Rpc =>
  unary(schema, async (call, message) => {
    const share = call.app.memory.open(ownerOf(call));
    const ran = () => run(call.running, message, share).finally(share.close);
    return callInto(call, call.running, SECONDS, ran);
  });

const watch: Rpc = (call) => {
  const { app, c, opened } = call;
  return answerStream(app, c, { keepalive: {} }, async (stream) => {
    const { path, recursive } = await readMessage(app, c, ownerOf(call), ToWatch);
    const limit = timeLimitOf(c);
    const { resource, backend, ref } = runningOf(app, opened);
    const leaveConcurrency = app.concurrency.enter(resource.id, resource.walletId);
    const share = app.memory.open(ownerOf(call));
    const ending = new AbortController();
    let isLate = false;
    const timer =
      limit === undefined
        ? undefined
        : setTimeout(() => {
            isLate = true;
            ending.abort();
          }, limit);
    void stream.interrupted.then(() => ending.abort());
    let before: Map<string, string> | undefined;
    const seconds = limit === undefined ? WATCH_SECONDS_MAX : Math.ceil(limit / 1000) + 2;
    const order = { path, isRecursive: recursive, seconds, signal: ending.signal };
    try {
      await watchEntries(backend, ref, order, async (now, bytes) => {
        share.close();
        share.take(WATCH_MEMORY * bytes);
        if (!before) await stream.send({ start: {} });
        else for await (const event of changesOf(before, now)) await stream.send({ filesystem: event });
        before = now;
      }).catch((error) => throwLost(app, resource.id, error));
    } finally {
      clearTimeout(timer);
      share.close();
      leaveConcurrency();
    }
    if (isLate) throw new ConnectFault('deadline_exceeded', 'The watch took longer than its timeout.');
    runningOf(app, opened);
    if (!ending.signal.aborted) throw new ConnectFault('unknown', 'The watch was cut off.');
  });
};

/** The memory that each byte takes of what a machine prints of its entries: as it comes, joined, and as targets of links. */
const LIST_MEMORY = 4;

/** The calls of the service, by their names. */
export const FILESYSTEM_CALLS: Record<string, Rpc> = {
  Stat: onMachine(OfPath, async ({ backend, ref }, { path }) => ({
    entry: entryOf(await statEntry(backend, ref, path)),
  })),
  ListDir: onMachine(
    v.looseObject({ path: Path, depth: v.optional(wholeNumber(0, 2 ** 32 - 1), 1) }),
    async ({ backend, ref }, { path, depth }, share) => {
      const budget = { take: (piece: Buffer) => share.tryTake(LIST_MEMORY * piece.length), unwanted: NEVER };
      return writeList('entries', shown(listEntries(backend, ref, path, depth, budget)), share.take);
    },
  ),
  MakeDir: onMachine(OfPath, async ({ backend, ref }, { path }) => {
    const made = await makeDirectory(backend, ref, path);
    if (!made) throw new Refusal('conflict', 'path: the directory is there already.');
    return { entry: entryOf(made) };
  }),
  Move: onMachine(
    v.looseObject({ source: Path, destination: Path }),
    async ({ backend, ref }, { source, destination }) => ({
      entry: entryOf(await moveEntry(backend, ref, source, destination)),
    }),
  ),
  Remove: onMachine(OfPath, async ({ backend, ref }, { path }) => {
    await removeEntry(backend, ref, path);
    return {};
  }),
  WatchDir: watch,
  // A watch that its client asks for events, as the Python SDK does where it has no streams.
  CreateWatcher: unary(ToWatch, async ({ app, running, watchers }, { path, recursive }) => {
    const opening = watchers.open(running, { path, isRecursive: recursive });
    const watcherId = await opening.catch((error) => throwLost(app, running.resource.id, error));
    return { watcherId };
  }),
  GetWatcherEvents: unary(OfWatcher, async (call, { watcherId }) => {
    const share = call.app.memory.open(ownerOf(call));
    try {
      // They were counted while they waited, and would be lost by a refusal.
      return await writeList('events', call.watchers.take(call.opened.resource.id, watcherId), share.add);
    } finally {
      share.close();
    }
  }),
  RemoveWatcher: unary(OfWatcher, ({ opened, watchers }, { watcherId }) => {
    watchers.remove(opened.resource.id, watcherId);
    return {};
  }),
};
