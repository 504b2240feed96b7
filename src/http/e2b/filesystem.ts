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
import { explainFailure } from '../routes/guest-call.ts';
import { answerStream, ConnectFault, readMessage, timeLimitOf } from './connect.ts';
import { type Running, runningOf } from './envd.ts';
import { uncertainInside } from './errors.ts';
import { callInto, ownerOf, type Rpc, unary } from './rpc.ts';

/** The service `filesystem.Filesystem` of E2B's agent. */

const SECONDS = 60;
const WATCH_SECONDS_MAX = 30 * 86_400;
const Path = text(1, 4096);
const OfPath = v.looseObject({ path: Path });

const TYPE_BITS = 0o170000;
const FILE = 0o100000;
const TYPES = new Map<number, [name: string, letter: string]>([
  [FILE, ['FILE_TYPE_FILE', '-']],
  [0o040000, ['FILE_TYPE_DIRECTORY', 'd']],
  [0o120000, ['FILE_TYPE_SYMLINK', 'l']],
]);
const PERMISSIONS = ['r', 'w', 'x', 'r', 'w', 'x', 'r', 'w', 'x'];

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
    modifiedTime: new Date(modified * 1000).toISOString(),
    ...(target === undefined ? {} : { symlinkTarget: target }),
  };
}

/** Turns a call on the machine of a running sandbox into a handler. */
const onMachine = <S extends v.GenericSchema>(
  schema: S,
  run: (at: Running, message: v.InferOutput<S>) => Promise<object>,
): Rpc => unary(schema, (call, message) => callInto(call, call.running, SECONDS, () => run(call.running, message)));

const watch: Rpc = (call) => {
  const { app, c, opened } = call;
  return answerStream(app, c, { keepalive: {} }, async (stream) => {
    const schema = v.looseObject({ path: Path, recursive: v.optional(v.boolean(), false) });
    const { path, recursive } = await readMessage(app, c, ownerOf(call), schema);
    const limit = timeLimitOf(c);
    const { resource, backend, ref } = runningOf(app, opened);
    const leaveConcurrency = app.concurrency.enter(resource.id, resource.walletId);
    const over = new AbortController();
    let isLate = false;
    const timer =
      limit === undefined
        ? undefined
        : setTimeout(() => {
            isLate = true;
            over.abort();
          }, limit);
    void stream.left.then(() => over.abort());
    let before: Map<string, string> | undefined;
    const seconds = limit === undefined ? WATCH_SECONDS_MAX : Math.ceil(limit / 1000) + 2;
    const order = { path, isRecursive: recursive, seconds, signal: over.signal };
    try {
      await watchEntries(backend, ref, order, async (now) => {
        if (!before) await stream.send({ start: {} });
        else for (const event of changesOf(before, now)) await stream.send({ filesystem: event });
        before = now;
      }).catch(async (error) => {
        throw await explainFailure(app, resource.id, error instanceof Refusal ? error : uncertainInside(error));
      });
    } finally {
      clearTimeout(timer);
      leaveConcurrency();
    }
    if (isLate) throw new ConnectFault('deadline_exceeded', 'The watch took longer than its timeout.');
    runningOf(app, opened);
    if (!over.signal.aborted) throw new ConnectFault('unknown', 'The watch was cut off.');
  });
};

type Change = { name: string; type: string };
/** Returns the events that lead from one view of a directory to the next. */
function changesOf(before: ReadonlyMap<string, string>, now: ReadonlyMap<string, string>): Change[] {
  const part = (facts: string, at: number) => facts.split(' ')[at];
  const inodes = new Set([...now].filter(([name]) => !before.has(name)).map(([, facts]) => part(facts, 0)));
  const changes: Change[] = [];
  for (const [name, facts] of before)
    if (!now.has(name))
      changes.push({ name, type: inodes.has(part(facts, 0)) ? 'EVENT_TYPE_RENAME' : 'EVENT_TYPE_REMOVE' });
  for (const [name, facts] of now) {
    const earlier = before.get(name);
    if (earlier === facts) continue;
    const isNew = earlier === undefined || part(earlier, 0) !== part(facts, 0);
    if (earlier === undefined) changes.push({ name, type: 'EVENT_TYPE_CREATE' });
    const content = (it: string) => it.split(' ').slice(2).join(' ');
    const isFile = (Number.parseInt(part(facts, 1) as string, 16) & TYPE_BITS) === FILE;
    if (isFile && (isNew ? part(facts, 2) !== '0' : content(facts) !== content(earlier as string)))
      changes.push({ name, type: 'EVENT_TYPE_WRITE' });
    if (!isNew && part(earlier as string, 1) !== part(facts, 1)) changes.push({ name, type: 'EVENT_TYPE_CHMOD' });
  }
  return changes;
}

/** The calls of the service, by their names. */
export const FILESYSTEM_CALLS: Record<string, Rpc> = {
  Stat: onMachine(OfPath, async ({ backend, ref }, { path }) => ({
    entry: entryOf(await statEntry(backend, ref, path)),
  })),
  ListDir: onMachine(
    v.looseObject({ path: Path, depth: v.optional(wholeNumber(0, 2 ** 32 - 1), 1) }),
    async ({ backend, ref }, { path, depth }) => ({
      entries: (await listEntries(backend, ref, path, depth)).map(entryOf),
    }),
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
};
