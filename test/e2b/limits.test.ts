import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { openInside, openStream } from './shared.ts';

const MIB = 1024 * 1024;
/** What a caller may have in memory at once. */
const QUOTA = 64 * MIB;

/** A sandbox, of a server on which nothing may stand still for long. */
async function openHurried(t: Parameters<typeof openInside>[0]) {
  const it = await openInside(t, {}, { stallMilliseconds: 1500 });
  const { app } = it.purser;
  /** Returns whether the caller has this much more to use. */
  const hasRoom = (bytes: number) => {
    const share = app.memory.open(app.tenantOf(it.wallet.id).treeId);
    const has = share.tryTake(bytes);
    share.close();
    return has;
  };
  return { ...it, hasRoom };
}

/** The body of a request to a stream. */
function enveloped(message: object): Buffer {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(5);
  head.writeUInt32BE(text.length, 1);
  return Buffer.concat([head, text]);
}

test('a client that reads nothing is cut off, whatever it asks of keep-alives, and does not hold up the others', async (t) => {
  const { purser, headers, stream } = await openHurried(t);
  // More than the kernel takes for a client that does not read.
  const command = 'while [ ! -e go ]; do sleep 0.05; done; head -c 30000000 /dev/zero';
  const asked = request(`${purser.url}/v1/e2b/envd/process.Process/Start`, {
    method: 'POST',
    agent: false,
    headers: { ...headers, 'content-type': 'application/connect+json', 'keepalive-ping-interval': '1' },
  });
  asked.on('error', () => {}); // It is cut off.
  asked.end(enveloped({ process: { cmd: '/bin/sh', args: ['-c', command] }, stdin: false, tag: 'busy' }));
  const [answer] = (await once(asked, 'response')) as [IncomingMessage];
  answer.on('error', () => {});
  await once(answer, 'readable');
  const reader = await stream('process.Process/Connect', { process: { tag: 'busy' } });
  await reader.pid();
  const go = await stream('process.Process/Start', { process: { cmd: 'touch', args: ['go'] }, stdin: false });
  await go.end();
  assert.equal((await reader.end()).end.exitCode, 0);
  assert.equal(reader.printed('stdout').length, 30_000_000);
});

test('input that a program does not read waits once, is counted, and is dropped with the program', async (t) => {
  const { rpc, run, hasRoom } = await openHurried(t);
  const it = await run('echo on; sleep 1000', { stdin: true });
  const pid = await it.pid();
  await it.until('on');
  const input = { stdin: Buffer.alloc(4 * MIB, 'x').toString('base64') };
  const send = () => rpc('process.Process/SendInput', { process: { pid }, input });
  const first = await send();
  assert.deepEqual([first.status, first.body.code], [500, 'unknown'], 'the program may still read it');
  const second = await send();
  assert.deepEqual([second.status, second.body.code], [429, 'resource_exhausted'], 'nothing of it was written');
  assert.ok(!hasRoom(QUOTA - 4 * MIB), 'what waits is counted');
  assert.ok(hasRoom(QUOTA - 6 * MIB), 'and once');
  await rpc('process.Process/SendSignal', { process: { pid }, signal: 'SIGNAL_SIGKILL' });
  await it.end();
  await until('nothing is held', async () => hasRoom(QUOTA - 1024));
});

test('input that a program reads slowly arrives whole', async (t) => {
  const { rpc, run } = await openInside(t);
  const it = await run('sleep 0.3; wc -c', { stdin: true });
  const pid = await it.pid();
  const input = { stdin: Buffer.alloc(4 * MIB, 'x').toString('base64') };
  const sent = await Promise.all([1, 2].map(() => rpc('process.Process/SendInput', { process: { pid }, input })));
  assert.deepEqual(
    sent.map(({ status }) => status),
    [200, 200],
  );
  assert.equal((await rpc('process.Process/CloseStdin', { process: { pid } })).status, 200);
  assert.equal((await it.end()).end.exitCode, 0);
  assert.equal(Number(it.printed('stdout')), 8 * MIB);
});

test('input is said to be read where it was, also when the program ends or its input is closed meanwhile', async (t) => {
  const { rpc, run } = await openInside(t);
  const stdin = Buffer.alloc(2 * MIB, 'x').toString('base64');
  /** A program that reads one byte, so that all of the input is on its way, and goes on when it is told to. */
  const begun = async (name: string, then: string) => {
    const wait = `head -c 1 >/dev/null; echo begun; while [ ! -e ${name} ]; do sleep 0.05; done; ${then}`;
    const it = await run(wait, { stdin: true });
    const process = { pid: await it.pid() };
    const send = () => rpc('process.Process/SendInput', { process, input: { stdin } });
    const sent = send();
    await it.until('begun');
    return { it, process, send, sent };
  };
  const go = (name: string) => rpc('filesystem.Filesystem/MakeDir', { path: name });

  const closed = await begun('read', 'wc -c; sleep 1000');
  const second = closed.send();
  assert.equal((await rpc('process.Process/CloseStdin', { process: closed.process })).status, 200);
  await go('read');
  await closed.it.until(String(2 * MIB - 1));
  assert.equal((await closed.sent).status, 200, (await closed.sent).text);
  assert.match((await second).text, /standard input was closed/);

  const ended = await begun('ended', 'exit 3');
  await go('ended');
  assert.equal((await ended.it.end()).end.exitCode, 3);
  const { status, body } = await ended.sent;
  assert.deepEqual([status, body.code], [500, 'unknown']);
  assert.match(body.message, /has not read all/);
});

test('those who follow programs are limited in number, served together, and counted until they leave', async (t) => {
  const { rpc, run, stream, hasRoom } = await openHurried(t);
  const it = await run('echo on; while [ ! -e go ]; do sleep 0.05; done; echo said; sleep 1000', { tag: 'long' });
  await it.until('on');
  const follow = () => stream('process.Process/Connect', { process: { tag: 'long' } });
  const followers = await Promise.all(Array.from({ length: 64 }, follow));
  for (const one of followers) await one.pid();
  assert.ok(!hasRoom(QUOTA - 64 * 64 * 1024), 'each is counted');
  assert.equal((await (await follow()).end()).error.code, 'resource_exhausted');
  const written = t.mock.method(Buffer.prototype, 'toString');
  await rpc('filesystem.Filesystem/MakeDir', { path: 'go' });
  for (const one of followers) await one.until('said');
  const encoded = written.mock.calls.filter((call: { arguments: unknown[] }) => call.arguments[0] === 'base64').length;
  written.mock.restore();
  assert.ok(encoded < 8, `a piece of output is encoded ${encoded} times`);
  followers[0]?.leave();
  await until('there is room for another', async () => {
    const another = await follow();
    await another.begun();
    return another.messages[0]?.isLast === false;
  });
  await rpc('process.Process/SendSignal', { process: { tag: 'long' }, signal: 'SIGNAL_SIGKILL' });
  for (const one of followers.slice(1)) assert.equal((await one.end()).end.exitCode, -1);
  await until('nothing is held', async () => hasRoom(QUOTA - 1024));
});

test('what is kept of a program while it runs is counted, and has a limit', async (t) => {
  const { purser, wallet, rpc, run, hasRoom } = await openHurried(t);
  for (const more of [
    { tag: 'x'.repeat(300_000) },
    { envs: Object.fromEntries(['A', 'B', 'C'].map((it) => [it, 'x'.repeat(90_000)])) },
    { envs: { A: '\x01'.repeat(50_000) } }, // Each takes six bytes in a list.
  ])
    assert.equal((await (await run('true', more)).end()).error.code, 'invalid_argument');
  assert.deepEqual((await rpc('process.Process/List')).body.processes, []);
  const it = await run('echo on; sleep 1000', { tag: 'x'.repeat(200_000) });
  await it.until('on');
  assert.ok(!hasRoom(QUOTA - 200_000));
  const share = purser.app.memory.open(purser.app.tenantOf(wallet.id).treeId);
  assert.ok(share.tryTake(QUOTA - 400_000));
  const refused = await rpc('process.Process/List');
  assert.deepEqual([refused.status, refused.body.code], [429, 'resource_exhausted'], 'a list that has no room');
  share.close();
  assert.equal((await rpc('process.Process/List')).body.processes.length, 1);
  await rpc('process.Process/SendSignal', { process: { pid: await it.pid() }, signal: 'SIGNAL_SIGKILL' });
  await it.end();
  await until('nothing is held', async () => hasRoom(QUOTA - 1024));
});

test('a stream that is refused says why in its last message, as its clients read nothing else', async (t) => {
  const { purser, wallet, headers } = await openInside(t);
  const refused = async (more: object, path: string, body: object = {}) =>
    (await (await openStream(purser.url, path, { ...headers, ...more }, body)).end()).error.code;
  const start = 'process.Process/Start';
  assert.equal(await refused({ 'x-access-token': 'ff'.repeat(32) }, start), 'unauthenticated');
  assert.equal(await refused({}, 'process.Process/StreamMore'), 'unimplemented');
  assert.equal(await refused({}, start), 'invalid_argument');
  const { treeId } = purser.app.tenantOf(wallet.id);
  while (purser.app.atOnce.tryTake(treeId, 1));
  assert.equal(await refused({}, start, { process: { cmd: 'true' } }), 'resource_exhausted');
});
