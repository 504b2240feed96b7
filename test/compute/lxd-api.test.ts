import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Duplex, PassThrough } from 'node:stream';
import test, { type TestContext } from 'node:test';
import type { Snapshots } from '../../src/compute/backend.ts';
import { nameOf } from '../../src/compute/engines/lxd/describe.ts';
import { keeperOf } from '../../src/compute/engines/lxd/keeper.ts';
import { frame, MessageStream } from '../../src/compute/engines/lxd/websocket.ts';
import { WITH_EXIT_MARK, withoutMark } from '../../src/compute/kit/exit-mark.ts';
import { collect } from '../../src/compute/machine/collect.ts';
import { holdTimeouts } from '../helper/held-timeouts.ts';
import { whenRead } from '../helper/listener.ts';
import { LXD_PREFIX, lxdSubject } from './engines/lxd.ts';

/** What a real LXD cannot be made to do: a server that answers as a test says. */
type Answer = { status?: number; body?: object; drop?: true };
type Respond = (method: string, path: string, body: unknown) => Answer | Promise<Answer>;

const sync = (metadata: unknown): Answer => ({ body: { type: 'sync', metadata } });
const refusal = (code: number, error: string): Answer => ({
  status: code,
  body: { type: 'error', error_code: code, error },
});
const operation = (code: number, err = ''): object => ({
  id: 'op',
  status_code: code,
  err,
  metadata: null,
});
const SERVER = { auth: 'trusted', environment: { server: 'lxd', server_version: '5.0.2', server_clustered: true } };
const RESOURCES = { cpu: { total: 8 }, memory: { total: 16 * 1024 ** 3 } };

async function openFake(t: TestContext, respond: Respond, change: object = {}) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-fake-lxd-'));
  const path = join(directory, 'socket');
  const asked: string[] = [];
  const server = http.createServer(
    whenRead(async (request, response, body) => {
      const text = body.toString();
      const where = (request.url ?? '').replace(/[?&]project=default/, '');
      asked.push(`${request.method} ${where}`);
      const isJson = request.headers['content-type'] === 'application/json';
      const answer = await respond(request.method ?? '', where, isJson ? JSON.parse(text) : text);
      if (answer.drop) return request.socket.destroy();
      response.writeHead(answer.status ?? 200).end(JSON.stringify(answer.body));
    }),
  );
  await once(server.listen(path), 'listening');
  const { backend, spec } = lxdSubject(`unix://${path}`, change);
  t.after(async () => {
    await backend.close();
    server.close();
    rmSync(directory, { recursive: true, force: true });
  });
  return { backend, spec, asked, server };
}

const TAG = `${LXD_PREFIX}res-fake`;
const REF = nameOf(TAG);
const instance = (change: object = {}) => ({
  ...{ name: REF, status: 'Running', status_code: 103, architecture: 'x86_64', location: 'one' },
  created_at: '2026-01-01T00:00:00Z',
  config: { 'user.purser.tag': TAG, 'user.purser.created': '1000' },
  ...change,
});
const order = async ({ backend, spec }: Awaited<ReturnType<typeof openFake>>) => ({
  tag: TAG,
  quote: await backend.quote(spec),
  deadline: 2_000_000_000,
});

test('a list with a member that does not answer is no list', async (t) => {
  let silent: object = instance({ name: nameOf('other'), status_code: 112, status: 'Error', location: 'two' });
  const fake = await openFake(t, (_, path) =>
    path.startsWith('/1.0/instances?') ? sync([instance(), silent]) : sync(instance()),
  );
  await assert.rejects(fake.backend.listOwned(LXD_PREFIX), /the member two does not answer/);
  silent = instance({ name: keeperOf(nameOf('other')), status_code: 112, location: 'two', config: null });
  await assert.rejects(fake.backend.listOwned(LXD_PREFIX), /the member two does not answer/);
  // Whatever else the operator has there is no lease.
  silent = instance({ name: 'somebodys', status_code: 112, status: 'Error', location: 'two', config: null });
  assert.deepEqual(await fake.backend.listOwned(LXD_PREFIX), [
    { ref: REF, tag: TAG, state: 'running', createdAt: 1000 },
  ]);
  assert.equal(fake.backend.partOf?.(REF), 'one', 'what fails with one member does not fail with another');
});

test('outside a cluster a machine depends on the whole server', async (t) => {
  const fake = await openFake(t, () => sync([instance({ location: 'none' })]));
  await fake.backend.listOwned(LXD_PREFIX);
  assert.equal(fake.backend.partOf?.(REF), undefined);
});

test('a machine whose state its member cannot say is neither there nor gone', async (t) => {
  const fake = await openFake(t, () => sync(instance({ status_code: 112, status: 'Error' })));
  await assert.rejects(fake.backend.inspect(REF), /cannot say the state/);
  await assert.rejects(fake.backend.find(TAG), /cannot say the state/);
});

test('a machine of whose configuration LXD says nothing is neither there, nor gone, nor somebody else’s', async (t) => {
  for (const config of [null, undefined]) {
    let isMade = false;
    const silent = instance({ status_code: 112, status: 'Error', config });
    const fake = await openFake(t, (method, path) => {
      if (path === '/1.0') return sync({ ...SERVER, environment: { ...SERVER.environment, server_clustered: false } });
      if (path.startsWith('/1.0/resources')) return sync(RESOURCES);
      if (path.startsWith('/1.0/instances?')) return sync([]);
      if (method === 'POST') isMade = true;
      return method === 'POST' ? refusal(409, 'already exists') : sync(silent);
    });
    await assert.rejects(fake.backend.inspect(REF));
    await assert.rejects(fake.backend.find(TAG), /does not say the configuration/);
    assert.equal((await fake.backend.create(await order(fake))).kind, 'unknown');
    assert.ok(isMade);
  }
});

test('a virtual machine that its guest has brought down is there until its end, and hides no other', async (t) => {
  const failed = instance({ type: 'virtual-machine', status_code: 112, status: 'Error' });
  const fake = await openFake(t, (_, path) => sync(path.startsWith('/1.0/instances?') ? [failed] : failed));
  assert.deepEqual(await fake.backend.listOwned(LXD_PREFIX), [
    { ref: REF, tag: TAG, state: 'running', createdAt: 1000 },
  ]);
  assert.deepEqual(await fake.backend.find(TAG), [{ ref: REF, state: 'running' }]);
});

/** A server that finds no instance: LXD says so as well where a certificate may not see the project (its docs, authorization). */
const withoutInstances =
  (project: Answer): Respond =>
  (method, path) => {
    if (path === '/1.0') return sync(SERVER);
    if (path.startsWith('/1.0/projects/')) return project;
    return path.startsWith('/1.0/instances?') && method === 'GET' ? sync([]) : refusal(404, 'Not Found');
  };

test('a machine is gone only where the server shows its project', async (t) => {
  const { backend, asked } = await openFake(t, withoutInstances(sync({ config: {} })));
  assert.equal(await backend.inspect(REF), undefined);
  assert.deepEqual(await backend.find(TAG), []);
  assert.equal(await snapshotsOf({ backend }).find(SNAPSHOT), undefined);
  await backend.destroy(REF);
  assert.ok(asked.some((it) => it === 'GET /1.0/projects/default'));
  for (const hidden of [refusal(404, 'Not Found'), refusal(403, 'Forbidden'), refusal(500, 'no')]) {
    const other = await openFake(t, withoutInstances(hidden));
    await assert.rejects(other.backend.inspect(REF));
    await assert.rejects(other.backend.find(TAG));
    await assert.rejects(async () => snapshotsOf(other).find(SNAPSHOT));
  }
});

test('another project is another engine: none of the first one’s machines are found in it', async (t) => {
  const environment = { ...SERVER.environment, certificate_fingerprint: 'abc' };
  const identities = await Promise.all(
    [{}, {}, { project: 'other' }].map(async (change) => {
      const { backend } = await openFake(t, () => sync({ ...SERVER, environment }), change);
      return backend.identity?.();
    }),
  );
  const [one, same, other] = identities;
  assert.equal(one, same);
  assert.notEqual(one, other);
});

test('a create whose rights are taken in the middle is unknown', async (t) => {
  let isMade = false;
  const fake = await openFake(t, (method, path) => {
    if (path === '/1.0') return sync({ ...SERVER, environment: { ...SERVER.environment, server_clustered: false } });
    if (path.startsWith('/1.0/resources')) return sync(RESOURCES);
    if (path.startsWith('/1.0/instances?')) return sync([]);
    if (method !== 'POST' || isMade) return refusal(404, 'Not Found');
    isMade = true;
    return sync(operation(200));
  });
  assert.equal((await fake.backend.create(await order(fake))).kind, 'unknown');
});

const SNAPSHOT = `${LXD_PREFIX}snap-fake`;
const KEPT = nameOf(SNAPSHOT).replace('purser-', 'purser-snapshot-');
const kept = (change: object = {}) => instance({ name: KEPT, status_code: 102, status: 'Stopped', ...change });
const LABELS = {
  'user.purser.snapshot': SNAPSHOT,
  'user.purser.created': '1000',
  'user.purser.snapshot_disk_gb': '40',
};
const SIZES = {
  'user.purser.snapshot_bytes': String(19 * 1024 ** 3),
  'user.purser.snapshot_disk_bytes': String(20 * 1024 ** 3 + 1),
};
/** A server that has one snapshot, and no lease. */
const keeping = (it: object): Respond => {
  return (_, path) => {
    if (path === '/1.0') return sync(SERVER);
    if (path.startsWith('/1.0/instances?')) return sync([it]);
    if (path === `/1.0/instances/${KEPT}`) return sync(it);
    if (path.startsWith('/1.0/projects/')) return sync({});
    return path.startsWith('/1.0/resources')
      ? sync(RESOURCES)
      : path.startsWith('/1.0/cluster')
        ? sync([])
        : refusal(404, 'not found');
  };
};
const snapshotsOf = ({ backend }: Pick<Awaited<ReturnType<typeof openFake>>, 'backend'>) =>
  backend.guest.snapshots as Snapshots;

test('a snapshot whose member does not answer is neither there nor gone', async (t) => {
  const snapshots = snapshotsOf(await openFake(t, keeping(kept({ config: null, status_code: 112, status: 'Error' }))));
  await assert.rejects(snapshots.find(SNAPSHOT), /does not say the configuration/);
  await assert.rejects(snapshots.list(LXD_PREFIX), /the member one does not answer/);
});

test('a snapshot without its size is absent and listed, one of another name is somebody else’s', async (t) => {
  const broken = snapshotsOf(await openFake(t, keeping(kept({ config: LABELS }))));
  assert.equal(await broken.find(SNAPSHOT), undefined);
  assert.deepEqual(await broken.list(LXD_PREFIX), [{ tag: SNAPSHOT, createdAt: 1000 }]);
  const copied = kept({ name: 'copied', config: { ...LABELS, ...SIZES } });
  assert.deepEqual(await snapshotsOf(await openFake(t, keeping(copied))).list(LXD_PREFIX), []);
  const odd = kept({ config: { ...LABELS, 'user.purser.snapshot_bytes': 'x' } });
  await assert.rejects(snapshotsOf(await openFake(t, keeping(odd))).find(SNAPSHOT), /how large/);
});

test('from a snapshot that is larger with its image than a smaller disk nothing is made', async (t) => {
  const fake = await openFake(t, keeping(kept({ config: { ...LABELS, ...SIZES } })));
  const created = await fake.backend.create({ ...(await order(fake)), snapshot: SNAPSHOT });
  assert.deepEqual([created.kind, 'code' in created && created.code], ['refused', 'lease_limit_exceeded']);
  assert.deepEqual(
    fake.asked.filter((it) => !it.startsWith('GET')),
    [],
  );
  // On a disk of the size that it was taken of it has had room before.
  const same = await openFake(
    t,
    keeping(kept({ config: { ...LABELS, ...SIZES, 'user.purser.snapshot_disk_gb': '20' } })),
  );
  await same.backend.create({ ...(await order(same)), snapshot: SNAPSHOT });
  assert.equal(same.asked.filter((it) => it.startsWith('POST')).length, 1);
});

const MACHINE = { type: 'virtual-machine' };
const ALONE = (driver: string) =>
  sync({ environment: { ...SERVER.environment, server_clustered: false, driver, architectures: ['x86_64'] } });

for (const [driver, type, count] of [
  ['lxc', 'virtual-machine', 0],
  ['lxc | qemu', 'container', 0],
  ['lxc | qemu', 'virtual-machine', 1],
] as const)
  test(`virtual machines of a server with ${driver} and the image of a ${type}: ${count ? 'some' : 'none'} on offer`, async (t) => {
    const respond: Respond = (_, path) => {
      if (path === '/1.0') return ALONE(driver);
      if (path.startsWith('/1.0/images/')) return sync({ type });
      if (path.startsWith('/1.0/storage-pools')) return sync({});
      return sync(path.startsWith('/1.0/resources') ? RESOURCES : []);
    };
    const { backend, spec } = await openFake(t, respond, MACHINE);
    const free = (await backend.freeFor?.({ ...spec, cpus: 1 })) ?? 0;
    assert.equal(free > 0, count > 0, `${free} are free`);
  });

test('a server that never ends the import of a keeper’s image leaves a create unknown', async (t) => {
  const limits = holdTimeouts(t, 60_000);
  const respond: Respond = (method, path) => {
    if (path === '/1.0') return ALONE('lxc | qemu');
    if (path.startsWith('/1.0/resources')) return sync(RESOURCES);
    if (path.startsWith('/1.0/instances?')) return sync([]);
    if (path.startsWith('/1.0/operations')) limits.expire();
    return method === 'POST' || path.startsWith('/1.0/operations') ? sync(operation(103)) : refusal(404, 'none');
  };
  const { backend, spec } = await openFake(t, respond, MACHINE);
  const quote = await backend.quote({ ...spec, cpus: 1 });
  const created = await backend.create({ tag: TAG, quote, deadline: 2_000_000_000 });
  assert.equal(created.kind, 'unknown', JSON.stringify(created));
});

test('what an agent says of its virtual machine is no less than nothing, and has a limit', async (t) => {
  let state: object = { network: { eth0: { counters: { bytes_received: -9e15, bytes_sent: 5 } } } };
  const { backend } = await openFake(t, () => sync(state), MACHINE);
  assert.equal((await backend.guest.usage?.(REF))?.networkBytes, 5);
  state = { disk: Object.fromEntries(Array.from({ length: 9000 }, (_, at) => [`${at}${'x'.repeat(150)}`, {}])) };
  await assert.rejects(async () => backend.guest.usage?.(REF), /longer than 1048576 bytes/);
});

test('a virtual machine whose keeper somebody has removed is refused more time', async (t) => {
  const running = instance(MACHINE);
  const fake = await openFake(t, (_, path) => (path.includes('keeper') ? refusal(404, 'not found') : sync(running)));
  assert.deepEqual(await fake.backend.extend(REF, 2_000_000_000), { kind: 'refused', reason: 'not found' });
  assert.equal((await fake.backend.inspect(REF))?.state, 'ended');
});

/** What a create meets at the server, and its outcome. */
const CREATES: [what: string, post: Answer, wait: Answer, then: Answer, kind: string][] = [
  ['an operation that failed', sync(operation(103)), sync(operation(400, 'no')), refusal(404, 'none'), 'refused'],
  ['an answer that was lost', { drop: true }, sync({}), refusal(404, 'none'), 'unknown'],
  ['an operation that is forgotten', sync(operation(103)), refusal(404, 'none'), refusal(404, 'none'), 'unknown'],
  ['an answer of a member that was lost', refusal(503, 'lost'), sync({}), refusal(404, 'none'), 'unknown'],
  ['something else of this name', refusal(409, 'exists'), sync({}), sync(instance({ config: {} })), 'refused'],
  ['a lease that runs already', refusal(409, 'exists'), sync({}), sync(instance()), 'created'],
];
for (const [what, post, wait, then, kind] of CREATES)
  test(`a create that meets ${what} is ${kind}`, async (t) => {
    const fake = await openFake(t, (method, path) => {
      if (path === '/1.0') return sync(SERVER);
      if (path.startsWith('/1.0/cluster')) return sync([{ server_name: 'one', status: 'Online', message: '' }]);
      if (path.startsWith('/1.0/resources')) return sync(RESOURCES);
      if (path.startsWith('/1.0/operations')) return wait;
      if (path.startsWith('/1.0/instances?')) return sync([]);
      return method === 'POST' ? post : then;
    });
    const created = await fake.backend.create(await order(fake));
    assert.equal(created.kind, kind, JSON.stringify([created, fake.asked]));
  });

test('the capacity of a cluster is that of the members that are online', async (t) => {
  const members = [
    { server_name: 'one', status: 'Online', message: '' },
    { server_name: 'two', status: 'Offline', message: 'no heartbeat' },
  ];
  const fake = await openFake(t, (_, path) => {
    if (path === '/1.0') return sync(SERVER);
    if (path.startsWith('/1.0/cluster')) return sync(members);
    if (path.startsWith('/1.0/images/aliases')) return refusal(404, 'none');
    return sync(path.startsWith('/1.0/projects') ? { config: { restricted: 'true' } } : { driver: 'zfs' });
  });
  const findings = new Map((await fake.backend.doctor.check()).map((it) => [it.name, it]));
  assert.match(findings.get('members')?.detail ?? '', /two \(Offline\)/);
  assert.deepEqual([findings.get('project')?.ok, findings.get('image')?.ok], [false, false]);
  assert.match(findings.get('project')?.detail ?? '', /restricted.containers.lowlevel=allow/);
  assert.match(findings.get('disk')?.detail ?? '', /enforced by zfs/);
});

test('an untrusted certificate is named, with what to do', async (t) => {
  const fake = await openFake(t, () => sync({ auth: 'untrusted' }));
  const [finding] = await fake.backend.doctor.check();
  assert.ok(finding && !finding.ok && /lxc config trust add/.test(finding.detail), JSON.stringify(finding));
});

/** A frame as a server sends it: not masked. */
function served(opcode: number, payload: Buffer, isFinal = true): Buffer {
  const masked = frame(opcode, Buffer.alloc(payload.length));
  const head = masked.subarray(0, masked.length - payload.length - 4);
  head[0] = (isFinal ? 0x80 : 0) | opcode;
  head[1] = (head[1] as number) & 0x7f;
  return Buffer.concat([head, payload]);
}

for (const size of [1, 3, 100_000])
  test(`messages in pieces of ${size} bytes are one stream, and a text message ends it`, async () => {
    const payload = Buffer.alloc(70_000, 'payload.');
    const sent = Buffer.concat([
      served(2, Buffer.from('a')),
      served(9, Buffer.from('keepalive')),
      served(2, Buffer.alloc(0)),
      served(2, payload.subarray(0, 300), false),
      served(0, payload.subarray(300)),
      served(1, Buffer.alloc(0)),
      served(2, Buffer.from('late')),
    ]);
    const socket = new PassThrough();
    const stream = new MessageStream(socket);
    const read = collect(stream, 1_000_000);
    for (let at = 0; at < sent.length; at += size) socket.write(sent.subarray(at, at + size));
    const { bytes } = await read;
    assert.ok(bytes.equals(Buffer.concat([Buffer.from('a'), payload])));
    assert.equal(stream.isWhole, true);
  });

/**
 * An LXD in which every command says `half` and ends with code 0, while a process that it has left holds its output open:
 * nothing but the exit mark says so, until the connections are closed. With `breaks`, the connection of that stream breaks
 * before.
 */
async function openFakeExec(t: TestContext, breaks?: 'stdout') {
  const over = Promise.withResolvers<Answer>();
  let mark = '';
  const fake = await openFake(t, (method, path, body) => {
    if (path.startsWith('/1.0/operations')) return over.promise;
    const { command } = body as { command: string[] };
    if (method !== 'POST' || command[2] !== WITH_EXIT_MARK) return refusal(404, 'none');
    mark = command[5] as string;
    const fds = { 0: 'stdin', 1: 'stdout', 2: 'stderr', control: 'control' };
    return sync({ id: 'op', status_code: 103, err: '', metadata: { fds } });
  });
  const streams = new Map<string, Duplex>();
  fake.server.on('upgrade', (request, stream) => {
    const name = new URL(request.url ?? '', 'http://lxd').searchParams.get('secret') as string;
    streams.set(
      name,
      stream
        .on('error', () => {})
        .on('end', () => stream.end())
        .resume(),
    );
    if (name === 'control') stream.once('close', () => over.resolve(sync(operation(400, 'the connection is closed'))));
    stream.write('HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n');
    if (streams.size < 4) return;
    const [stdout, stderr] = [streams.get('stdout') as Duplex, streams.get('stderr') as Duplex];
    const sayMark = () => stderr.write(served(2, Buffer.from(`${mark}0\n`)));
    stdout.write(served(2, Buffer.from('half')));
    if (breaks) stdout.once('close', sayMark).end();
    else sayMark();
  });
  return fake.backend.guest;
}

const EXEC = { command: 'true', timeoutSeconds: 20, streamBytesMax: 100 };
const LOST = /the connection to a command was lost/;

test('a command whose output is held open by what it left is answered with what it said', async (t) => {
  const { exitCode, stdout } = await (await openFakeExec(t)).exec(REF, EXEC);
  assert.deepEqual([exitCode, stdout.toString()], [0, 'half']);
});

test('a session whose output is held open by what it left ends with its code', async (t) => {
  const session = await (await openFakeExec(t)).session(REF, { command: EXEC.command, terminal: undefined });
  t.after(() => session.kill());
  assert.deepEqual(await session.ended, { code: 0 });
});

test('a command is not answered with the half that came before its stdout broke, however long its stderr stays', async (t) => {
  await assert.rejects((await openFakeExec(t, 'stdout')).exec(REF, EXEC), LOST);
});

test('a session whose stdout broke is lost, however long its stderr stays', async (t) => {
  const session = await (await openFakeExec(t, 'stdout')).session(REF, { command: EXEC.command, terminal: undefined });
  t.after(() => session.kill());
  await assert.rejects(session.ended, LOST);
});

test('what is written after the end is lost, and breaks nothing', async () => {
  const socket = new PassThrough();
  const stream = new MessageStream(socket);
  const read = collect(stream, 1000);
  socket.write(served(1, Buffer.alloc(0)));
  await read;
  const fault = await new Promise((resolve) => stream.write('late', resolve));
  assert.ok(fault instanceof Error);
});

test('a connection that breaks ends the stream, which is not whole then', async () => {
  const socket = new PassThrough();
  const stream = new MessageStream(socket);
  const read = collect(stream, 1000);
  socket.write(served(2, Buffer.from('half')));
  setImmediate(() => socket.destroy(new Error('reset')));
  assert.equal((await read).bytes.toString(), 'half');
  assert.equal(stream.isWhole, false);
  await new Promise<void>((resolve) => stream.write('what nobody reads', () => resolve()));
});

test('an exit code behind its mark is found wherever the pieces are cut', async () => {
  const mark = 'purser-0123 ';
  const said = `one purser-01 two ${mark}127\nthree`;
  for (let size = 1; size <= said.length; size++) {
    let code: number | undefined;
    const filter = withoutMark(mark, (found) => {
      code = found;
    });
    const read = collect(filter, 1000);
    for (let at = 0; at < said.length; at += size) filter.write(said.slice(at, at + size));
    filter.end();
    assert.deepEqual([(await read).bytes.toString(), code], ['one purser-01 two three', 127], `pieces of ${size}`);
  }
  const filter = withoutMark(mark, () => assert.fail('there is no mark'));
  const read = collect(filter, 1000);
  filter.end(`plain ${mark.slice(0, 5)}`);
  assert.equal((await read).bytes.toString(), `plain ${mark.slice(0, 5)}`);
});
