import assert from 'node:assert/strict';
import { createHash, randomBytes, randomInt } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { connectMcp } from '../helper/mcp.ts';
import type { TestServerOptions } from '../helper/server.ts';
import { openStream, type Stream } from '../helper/sse.ts';
import { until } from '../helper/waiting.ts';
import { holdToDocument } from '../http/documented.ts';
import { openLeaseServer } from './docker-leases.ts';
import { LONG, openMemoryServer } from './leases.ts';

/** Working in a lease, over HTTP. */

async function openLease(t: TestContext, options: TestServerOptions = {}) {
  const purser = await openLeaseServer(t, options);
  if (!purser) return undefined;
  holdToDocument(purser);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body as { id: string };
  const ask = (verb: string, body: object = {}, headers: Record<string, string> = {}) =>
    purser.ask('POST', `/v1/compute/${verb}`, { token, body: { id, ...body }, headers });
  /** Asks for events, which come as they are read. */
  const follow = async (verb: string, body: object): Promise<Stream> => {
    const headers = { accept: 'text/event-stream' };
    return openStream(purser.url, token, { id, ...body }, { path: `/v1/compute/${verb}`, headers });
  };
  const sh = async (command: string) => (await ask('exec', { command })).body.stdout as string;
  const sleepers = async (marker: string) =>
    sh(`for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep '^sleep ${marker}'; done; true`);
  return { purser, token, id, ask, follow, sh, sleepers };
}

/** The name and the data of an event. */
function parsed(event: string | undefined): [name: string, data: any] {
  const [, name = '', data = ''] = /^event: (\w+)\ndata: (.*)$/.exec(event ?? '') ?? [];
  assert.ok(name, event);
  return [name, JSON.parse(data)];
}
async function allOf(stream: Stream): Promise<[string, any][]> {
  const events: [string, any][] = [];
  for (let it = await stream.next(); it !== undefined; it = await stream.next())
    if (!it.startsWith(':')) events.push(parsed(it));
  return events;
}
const freshMarker = () => `7${randomInt(1e6)}`;

test('exec takes input, a directory and variables, and refuses what is none with what to do', async (t) => {
  const lease = await openLease(t);
  if (!lease) return;
  const { ask, purser } = lease;
  const secret = `canary-${randomBytes(8).toString('hex')}`;
  const body = { command: 'cat; pwd; echo "$A" >&2; exit 4', cwd: '/tmp', env: { A: secret }, stdin: 'in ü\n' };
  const { status, body: said } = await ask('exec', body);
  const { duration_ms: milliseconds, ...rest } = said;
  assert.deepEqual(
    [status, rest],
    [
      200,
      {
        id: lease.id,
        exit_code: 4,
        stdout: 'in ü\n/tmp\n',
        stderr: `${secret}\n`,
        stdout_truncated: false,
        stderr_truncated: false,
        timed_out: false,
      },
    ],
  );
  assert.ok(Number.isInteger(milliseconds));
  const bytes = await ask('exec', { command: 'wc -c', stdin_base64: randomBytes(1000).toString('base64') });
  assert.equal(bytes.body.stdout.trim(), '1000');
  for (const [change, words] of [
    [{ env: { 'a-b': 'x' } }, /^env.*name of a shell variable/],
    [{ env: { PURSER_EXEC: 'x' } }, /^env/],
    [{ env: { A: 1 } }, /^env\.A: must be a string/],
    [{ env: { A: '\0' } }, /^env\.A: must not contain NUL/],
    [{ env: ['A=1'] }, /^env/],
    [{ cwd: '/none' }, /^cwd: is no directory of the resource.*Make it first/],
    [{ cwd: '' }, /^cwd: must be a string of 1 to/],
    [{ stdin_base64: 'ü' }, /^stdin_base64: must be base64/],
    [{ stdin: 'a', stdin_base64: 'YQ==' }, /^stdin_base64: leave it out/],
  ] as const) {
    const answer = await ask('exec', { command: 'true', ...change });
    assert.deepEqual([answer.status, answer.body.error?.code], [400, 'invalid_request'], JSON.stringify(change));
    assert.match(answer.body.error.message, words);
  }
  assert.doesNotMatch(purser.log.join(''), new RegExp(secret));
});

test('exec tells its output as events while the command runs, and ends with what the JSON answer has', async (t) => {
  const lease = await openLease(t);
  if (!lease) return;
  const { ask, follow } = lease;
  const command = 'printf "\\303"; sleep 1; printf "\\274\\n"; echo err >&2; sleep 0.3; exit 5';
  const stream = await follow('exec', { command: `echo begun; ${command}` });
  assert.deepEqual([stream.status, stream.headers['content-type']], [200, 'text/event-stream; charset=utf-8']);
  assert.deepEqual(parsed(await stream.next()), ['stdout', { text: 'begun\n' }], 'before its end');
  const events = await allOf(stream);
  const textsOf = (name: string) => events.flatMap(([it, { text }]) => (it === name ? [text] : [])).join('');
  assert.deepEqual([textsOf('stdout'), textsOf('stderr')], ['ü\n', 'err\n'], 'a character is in one piece');
  const [last, answer] = events.at(-1) as [string, object];
  assert.equal(last, 'exit');
  const { body } = await ask('exec', { command: `echo begun; ${command}` });
  const strip = ({ duration_ms: _, ...rest }: Record<string, unknown>) => rest;
  assert.deepEqual(strip(answer as never), strip(body));
  // Whoever accepts JSON gets it, as before.
  for (const accept of ['*/*', 'application/json', 'application/json, text/event-stream'])
    assert.equal((await ask('exec', { command: 'true' }, { accept })).headers['content-type'], 'application/json');
  // What is refused is refused before there is a stream.
  const refused = await ask('exec', { command: 'true', cwd: '/none' }, { accept: 'text/event-stream' });
  assert.equal(refused.status, 400);
});

test('a client that goes away kills its command, with all that it started', async (t) => {
  const lease = await openLease(t);
  if (!lease) return;
  const marker = freshMarker();
  const stream = await lease.follow('exec', { command: `setsid sleep ${marker} & echo begun; sleep ${marker}` });
  assert.deepEqual(parsed(await stream.next()), ['stdout', { text: 'begun\n' }]);
  stream.leave();
  await until('it is dead', async () => (await lease.sleepers(marker)) === '');
});

test('a client that reads nothing holds its command back, and a while later is gone', async (t) => {
  const lease = await openLease(t, { stallMilliseconds: 3000 });
  if (!lease) return;
  const { follow, sh } = lease;
  const command = 'i=0; while [ $i -lt 2000 ]; do head -c 100000 /dev/zero; i=$((i+1)); echo $i > /tmp/count; done';
  const stream = await follow('exec', { command, timeout: 120 });
  assert.equal(parsed(await stream.next())[0], 'stdout');
  let last = '';
  await until('it stands still', async () => {
    const count = await sh('cat /tmp/count');
    const isSame = count !== '' && count === last;
    last = count;
    await new Promise((resolve) => setTimeout(resolve, 500));
    return isSame;
  });
  assert.ok(Number(last) < 500, `${last} times 100 kB were taken for a client that reads nothing`);
  await until('it is dead', async () => (await sh("grep -lsa 'head -c [1]00000' /proc/[0-9]*/cmdline; true")) === '');
});

test('a file comes back as it was uploaded, as JSON and as bytes, whole and in parts', async (t) => {
  const lease = await openLease(t);
  if (!lease) return;
  const { ask, purser, token, id } = lease;
  const content = randomBytes(200_000);
  const path = "/tmp/it's -x ü.bin";
  await ask('upload', { path, content_base64: content.toString('base64') });
  const whole = (await ask('download', { path })).body;
  const sha256 = createHash('sha256').update(content).digest('hex');
  assert.deepEqual([whole.bytes, whole.size, whole.offset, whole.sha256], [200_000, 200_000, 0, sha256]);
  assert.ok(Buffer.from(whole.content_base64, 'base64').equals(content));
  const part = (await ask('download', { path, offset: 100, length: 10 })).body;
  assert.ok(Buffer.from(part.content_base64, 'base64').equals(content.subarray(100, 110)));
  const raw = await fetch(`${purser.url}/v1/compute/download`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      accept: 'application/octet-stream',
    },
    body: JSON.stringify({ id, path }),
  });
  assert.deepEqual(
    [raw.headers.get('content-type'), raw.headers.get('x-purser-file-size')],
    ['application/octet-stream', '200000'],
  );
  assert.ok(Buffer.from(await raw.arrayBuffer()).equals(content));
  const listing = (await ask('files', { path: '/tmp' })).body;
  assert.deepEqual(
    listing.entries.map(({ name, type, size, mode }: any) => [name, type, size, mode]),
    [["it's -x ü.bin", 'file', 200_000, '0644']],
  );
  assert.deepEqual([listing.type, listing.truncated], ['directory', false]);
  const { modified: _, ...facts } = (await ask('files', { path })).body;
  assert.deepEqual(facts, { id, path, type: 'file', size: 200_000, mode: '0644' });
  for (const [body, status, code] of [
    [{ path: '/none' }, 404, 'not_found'],
    [{ path: '/tmp' }, 400, 'invalid_request'],
    [{ path: '/a\0b' }, 400, 'invalid_request'],
    [{ path, length: 8 * 1024 * 1024 + 1 }, 400, 'invalid_request'],
    [{ path, id: 'res_01k9v3c2mq8r5t7w1x4z6b0d2f' }, 404, 'not_found'],
  ] as const) {
    const refused = await ask('download', body);
    assert.deepEqual([refused.status, refused.body.error.code], [status, code], JSON.stringify(body));
  }
});

test('a process in the background outlives a purser that dies, and its log is followed to its end', async (t) => {
  const lease = await openLease(t);
  if (!lease) return;
  const { purser, ask, follow } = lease;
  const command = 'i=0; while [ ! -e /tmp/go ]; do sleep 0.2; done; echo "gone $WORD"; exit 6';
  const started = (await ask('process/start', { command, env: { WORD: 'on ü' } })).body;
  assert.deepEqual([started.status, started.exit_code, started.command], ['running', null, command]);
  await purser.crash(() => {});
  const stream = await follow('process/log', { process_id: started.process_id });
  await ask('exec', { command: 'touch /tmp/go' });
  const events = await allOf(stream);
  assert.deepEqual(events[0], ['output', { offset: 0, next_offset: 11, output: 'gone on ü\n' }]);
  const [name, { status, exit_code: exitCode, process_id: processId }] = events.at(-1) as [string, any];
  assert.deepEqual([name, status, exitCode, processId], ['exit', 'ended', 6, started.process_id]);
  const part = (await ask('process/log', { process_id: processId, offset: 5, length: 4 })).body;
  assert.deepEqual([part.output, part.offset, part.next_offset], ['on ', 5, 8], 'a character that is cut comes whole');
  const rest = (await ask('process/log', { process_id: processId, offset: part.next_offset })).body;
  assert.deepEqual([rest.output, rest.next_offset, rest.exit_code], ['ü\n', 11, 6]);
  assert.deepEqual(
    (await ask('process/list')).body.processes.map((it: any) => [it.id, it.process_id, it.exit_code]),
    [[lease.id, processId, 6]],
  );
});

test('a process is killed with its tree, and a follower that goes away or runs out of time leaves it alone', async (t) => {
  const lease = await openLease(t);
  if (!lease) return;
  const { ask, follow, sh, sleepers } = lease;
  const marker = freshMarker();
  const { process_id } = (
    await ask('process/start', { command: `env -i setsid sleep ${marker} & echo begun; sleep ${marker}` })
  ).body;
  await until('it has begun', async () => (await ask('process/log', { process_id })).body.output === 'begun\n');
  const timed = await allOf(await follow('process/log', { process_id, timeout: 5 }));
  assert.deepEqual(timed, [
    ['output', { offset: 0, next_offset: 6, output: 'begun\n' }],
    ['timeout', { id: lease.id, process_id, next_offset: 6 }],
  ]);
  const left = await follow('process/log', { process_id });
  assert.equal(parsed(await left.next())[0], 'output');
  left.leave();
  const followers = () => sh("grep -lsa 'exec <&[7] 7' /proc/[0-9]*/cmdline; true");
  await until('nobody follows', async () => (await followers()) === '');
  assert.equal((await sleepers(marker)).split('\n').length, 3);
  const killed = (await ask('process/kill', { process_id })).body;
  assert.deepEqual([killed.status, killed.exit_code], ['ended', 137]);
  await until('its tree is dead', async () => (await sleepers(marker)) === '');
  const none = await ask('process/log', { process_id: 'proc_01k9v3c2mq8r5t7w1x4z6b0d2f' });
  assert.deepEqual([none.status, none.body.error.code], [404, 'not_found']);
});

test('a server that stops ends a log that is followed, and says where to follow on', async (t) => {
  const lease = await openLease(t);
  if (!lease) return;
  const { process_id } = (await lease.ask('process/start', { command: 'echo begun; sleep 600' })).body;
  const stream = await lease.follow('process/log', { process_id });
  assert.equal(parsed(await stream.next())[0], 'output');
  lease.purser.app.health.stopping = true;
  assert.deepEqual(await allOf(stream), [['timeout', { id: lease.id, process_id, next_offset: 6 }]]);
  lease.purser.app.health.stopping = false;
});

test('what follows a lease ends with it, and what is asked of one that is over is refused as exec is', async (t) => {
  const lease = await openLease(t);
  if (!lease) return;
  const { ask, follow, purser, token, id } = lease;
  const { process_id } = (await ask('process/start', { command: 'echo begun; sleep 600' })).body;
  const log = await follow('process/log', { process_id });
  const command = await follow('exec', { command: 'echo begun; sleep 600' });
  assert.equal(parsed(await log.next())[0], 'output');
  assert.equal(parsed(await command.next())[0], 'stdout');
  assert.equal((await purser.stop(token, id)).status, 200);
  for (const stream of [log, command]) {
    const [name, data] = (await allOf(stream)).at(-1) as [string, any];
    assert.ok(
      name === 'exit' ? data.ended_by === 'lease' : name === 'error' && data.error.code === 'resource_not_active',
      `${name} ${JSON.stringify(data)}`,
    );
  }
  for (const [verb, body] of [
    ['download', { path: '/x' }],
    ['files', {}],
    ['process/start', { command: 'true' }],
    ['process/list', {}],
    ['process/log', { process_id }],
    ['process/kill', { process_id }],
  ] as const) {
    const refused = await ask(verb, body);
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'resource_not_active'], verb);
  }
});

test('the same by MCP', async (t) => {
  const lease = await openLease(t);
  if (!lease) return;
  const { purser, token, id } = lease;
  const client = await connectMcp(t, purser.url, token);
  const call = async (name: string, more: object = {}) => {
    const result = await client.tool(name, { id, ...more });
    assert.ok(!result.isError, JSON.stringify(result.structuredContent));
    return result.structuredContent;
  };
  const said = await call('compute_exec', { command: 'cat; echo $A', stdin: 'in ', env: { A: 'x' }, cwd: '/tmp' });
  assert.equal(said.stdout, 'in x\n');
  await call('compute_upload', { path: '/tmp/a', content_base64: 'aGVsbG8K' });
  assert.equal((await call('compute_download', { path: '/tmp/a' })).text, 'hello\n');
  await call('compute_upload', { path: '/tmp/bytes', content_base64: '/wA=' });
  assert.equal((await call('compute_download', { path: '/tmp/bytes' })).content_base64, '/wA=');
  await call('compute_exec', { command: 'rm /tmp/bytes' });
  assert.deepEqual((await call('compute_files', { path: '/tmp' })).entries[0].name, 'a');
  const { process_id } = await call('compute_process_start', { command: 'echo begun; sleep 600' });
  await until('it has begun', async () => (await call('compute_process_log', { process_id })).output === 'begun\n');
  assert.equal((await call('compute_process_list')).processes.length, 1);
  assert.equal((await call('compute_process_kill', { process_id })).exit_code, 137);
});

test('a plain exec still is one call of the backend, and asks for no session', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  purser.backend.guest.session = async () => assert.fail('a session was asked for');
  const answer = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'echo hello', other: 1 } });
  assert.deepEqual([answer.status, answer.body.stdout], [200, 'hello\n']);
  assert.equal(purser.memory.calls.filter((it) => it === 'exec').length, 1);
});
