import assert from 'node:assert/strict';
import test from 'node:test';
import { changesOf } from '../../src/http/e2b/watchers.ts';
import '../helper/on-disk.ts';
import { until } from '../helper/waiting.ts';
import { inside, openInside } from './shared.ts';

/** What a caller may have in memory at once. */
const QUOTA = 64 * 1024 * 1024;

test('a watcher tells each event once, to those who ask', async (t) => {
  const { rpc, run } = await openInside(t);
  const fs = (name: string, body: object) => rpc(`filesystem.Filesystem/${name}`, body);
  await fs('MakeDir', { path: 'w/sub' });
  const made = await fs('CreateWatcher', { path: 'w' });
  assert.equal(made.status, 200, made.text);
  const { watcherId } = made.body;
  const seen: string[] = [];
  const ask = async () => {
    const { events } = (await fs('GetWatcherEvents', { watcherId })).body;
    seen.push(...events.map((it: { type: string; name: string }) => `${it.type} ${it.name}`));
  };
  await ask();
  assert.equal(seen.length, 0);
  await (await run('echo 1 >w/a; echo 1 >w/sub/deep')).end();
  const isSeen = (event: string) => async (): Promise<boolean> => {
    await ask();
    return seen.includes(event);
  };
  await until('the file is told', isSeen('EVENT_TYPE_WRITE a'));
  await (await run('rm w/a')).end();
  await until('its end is told', isSeen('EVENT_TYPE_REMOVE a'));
  assert.deepEqual(seen, ['EVENT_TYPE_CREATE a', 'EVENT_TYPE_WRITE a', 'EVENT_TYPE_REMOVE a']);
  assert.equal((await fs('RemoveWatcher', { watcherId })).status, 200);
  for (const name of ['GetWatcherEvents', 'RemoveWatcher']) {
    const gone = await fs(name, { watcherId });
    assert.deepEqual([gone.status, gone.body.code], [404, 'not_found']);
  }
  assert.equal((await fs('CreateWatcher', { path: 'none' })).body.code, 'not_found');
});

test('a watcher is its own sandbox’s, and ends when too many events wait for its client', async (t) => {
  const { purser, wallet, rpc, run } = await openInside(t);
  await rpc('filesystem.Filesystem/MakeDir', { path: 'w/seen' });
  const { watcherId } = (await rpc('filesystem.Filesystem/CreateWatcher', { path: 'w', recursive: true })).body;
  const other = await purser.ask('POST', '/v1/e2b/v2/sandboxes', {
    headers: { 'x-api-key': wallet.token },
    body: { templateID: 'fixed' },
  });
  const stranger = await inside(purser, other.body).rpc('filesystem.Filesystem/GetWatcherEvents', { watcherId });
  assert.deepEqual([stranger.status, stranger.body.code], [404, 'not_found']);
  // All of them come in one view.
  await (
    await run('mkdir many; cd many; i=0; while [ $i -lt 4200 ]; do : >$i; i=$((i+1)); done; mv ../many ../w')
  ).end();
  // To ask for events would make room for others. What the watch has seen is counted until its end.
  const share = purser.app.memory.open(purser.app.tenantOf(wallet.id).treeId);
  await until('the watch has ended', () => share.tryTake(QUOTA));
  share.close();
  assert.equal((await rpc('filesystem.Filesystem/GetWatcherEvents', { watcherId })).status, 404);
});

test('a watcher for which there is no memory is refused as that', async (t) => {
  const { purser, wallet, rpc, run } = await openInside(t);
  await (await run('mkdir w && cd w && seq 1 100 | xargs touch')).end();
  const share = purser.app.memory.open(purser.app.tenantOf(wallet.id).treeId);
  await until('nothing else is in memory', () => share.tryTake(QUOTA - 8 * 1024));
  const create = () => rpc('filesystem.Filesystem/CreateWatcher', { path: 'w' });
  const refused = await create();
  assert.deepEqual([refused.status, refused.body.code], [429, 'resource_exhausted']);
  share.close();
  assert.equal((await create()).status, 200);
});

test('a sandbox has a number of watchers at most, and one that ends makes room', async (t) => {
  const { rpc } = await openInside(t);
  const create = () => rpc('filesystem.Filesystem/CreateWatcher', { path: '~' });
  const made = await Promise.all(Array.from({ length: 16 }, create));
  assert.deepEqual([...new Set(made.map((it) => it.status))], [200]);
  const refused = await create();
  assert.deepEqual([refused.status, refused.body.code], [429, 'resource_exhausted']);
  await rpc('filesystem.Filesystem/RemoveWatcher', { watcherId: made[0]?.body.watcherId });
  await until('there is room', async () => (await create()).status === 200);
});

test('others have their turn while two views of a large directory are compared', async () => {
  const view = (letter: string) =>
    new Map(Array.from({ length: 200_000 }, (_, i) => [`${letter}${i}`, `${i} 81a4 1 x`] as const));
  let turns = 0;
  let isOver = false;
  const count = () => {
    turns += 1;
    if (!isOver) setImmediate(count);
  };
  setImmediate(count);
  let events = 0;
  for await (const _ of changesOf(view('a'), view('b'))) events += 1;
  isOver = true;
  assert.equal(events, 600_000); // Each is moved, and there and written.
  assert.ok(turns > 1, `${turns} turns`);
});
