import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { openInside } from './shared.ts';

const base64 = (text: string) => Buffer.from(text).toString('base64');

test('a command streams both its outputs and its exit code', async (t) => {
  const { run } = await openInside(t, { envVars: { HOUSE: 'here' } });
  const it = await run('echo "$HOUSE $OWN"; echo no >&2; exit 3', { envs: { OWN: 'mine' } });
  const { end, error } = await it.end();
  assert.deepEqual([end.exitCode, end.exited, error], [3, true, undefined]);
  assert.equal(it.printed('stdout'), 'here mine\n');
  assert.equal(it.printed('stderr'), 'no\n');
});

test('variables may have any name, those of the scripts around a command as well', async (t) => {
  const { run } = await openInside(t);
  const envs = Object.fromEntries(['token', 'length', 'text', 'own', 'mark', 'it', 'child'].map((it) => [it, 'mine']));
  const it = await run(`echo ${Object.keys(envs).map((name) => `$${name}`)}`, { envs });
  assert.deepEqual((await it.end()).error, undefined);
  assert.equal(it.printed('stdout'), `${Object.values(envs)}\n`);
});

test('output comes as it is printed, and its bytes are kept', async (t) => {
  const { run, rpc } = await openInside(t);
  const it = await run('printf "a\\000\\377"; read line; echo "got $line"', { stdin: true });
  await it.until('a\0');
  const pid = await it.pid();
  assert.equal(
    (await rpc('process.Process/SendInput', { process: { pid }, input: { stdin: base64('hi\n') } })).status,
    200,
  );
  const { end } = await it.end();
  assert.equal(end.exitCode, 0);
  assert.match(it.printed('stdout'), /got hi\n$/);
});

test('a command starts in the home, or in a directory that is said from there', async (t) => {
  const { run } = await openInside(t);
  const home = await run('[ "$PWD" = "$HOME" ] && mkdir work');
  assert.equal((await home.end()).end.exitCode, 0);
  for (const cwd of ['work', '~/work']) {
    const it = await run('basename "$PWD"', { cwd });
    await it.end();
    assert.equal(it.printed('stdout'), 'work\n', cwd);
  }
  const { error } = await (await run('true', { cwd: '/nowhere' })).end();
  assert.equal(error.code, 'invalid_argument');
});

test('what cannot be started is an invalid argument, and injects nothing', async (t) => {
  const { stream, run } = await openInside(t);
  const start = (process: object) => stream('process.Process/Start', { process, stdin: false });
  assert.equal((await (await start({ cmd: '/no/such' })).end()).error.code, 'invalid_argument');
  assert.equal((await (await start({ cmd: 'true', envs: { 'A;touch x': '1' } })).end()).error.code, 'invalid_argument');
  const hostile = `'; echo injected; '`;
  const it = await start({ cmd: 'printf', args: ['%s|', hostile, '$(id)', '-n'], envs: { E: hostile } });
  await it.end();
  assert.equal(it.printed('stdout'), `${hostile}|$(id)|-n|`);
  const inner = await run('echo "$E"', { envs: { E: hostile } });
  await inner.end();
  assert.equal(inner.printed('stdout'), `${hostile}\n`);
});

test('a variable that the shell of the machine refuses is an invalid argument, and no lost connection', async (t) => {
  const { stream } = await openInside(t, { envVars: { HOUSE: 'here' } });
  const process = { cmd: 'true', envs: { OPTIND: 'no number' } };
  for (const more of [{ stdin: false }, { pty: { size: { cols: 80, rows: 24 } } }])
    assert.equal(
      (await (await stream('process.Process/Start', { process, ...more })).end()).error.code,
      'invalid_argument',
    );
});

test('a command survives its client; others find it, hear it and kill it', async (t) => {
  const { run, rpc, stream } = await openInside(t);
  const first = await run('echo one; read go; echo two; sleep 1000', { stdin: true, tag: 'server' });
  const pid = await first.pid();
  await first.until('one');
  first.leave();
  const { processes } = (await rpc('process.Process/List')).body;
  assert.deepEqual(
    processes.map((it: any) => [it.pid, it.tag, it.config.cmd]),
    [[pid, 'server', '/bin/bash']],
  );
  const again = await stream('process.Process/Connect', { process: { tag: 'server' } });
  assert.equal(await again.pid(), pid);
  await rpc('process.Process/SendInput', { process: { pid }, input: { stdin: base64('\n') } });
  await again.until('two');
  assert.equal(again.printed('stdout'), 'two\n');
  const kill = () => rpc('process.Process/SendSignal', { process: { pid }, signal: 'SIGNAL_SIGKILL' });
  assert.equal((await kill()).status, 200);
  const { end } = await again.end();
  assert.deepEqual([end.exitCode, end.exited, end.error], [-1, false, 'signal: killed']);
  const gone = await kill();
  assert.deepEqual([gone.status, gone.body.code], [404, 'not_found']);
  assert.deepEqual((await rpc('process.Process/List')).body.processes, []);
});

test('SIGTERM is a signal that the command may handle', async (t) => {
  const { run, rpc } = await openInside(t);
  const it = await run('trap "echo bye; exit 7" TERM; echo ready; while :; do sleep 0.1; done');
  await it.until('ready');
  const signal = 'SIGNAL_SIGTERM';
  assert.equal((await rpc('process.Process/SendSignal', { process: { pid: await it.pid() }, signal })).status, 200);
  const { end } = await it.end();
  assert.deepEqual([end.exitCode, end.exited, it.printed('stdout')], [7, true, 'ready\nbye\n']);
});

test('a command is killed with its children when its time is over, and says so', async (t) => {
  const { purser, run, rpc } = await openInside(t);
  const it = await run('sleep 4711.25 & sleep 4711.25', {}, { 'connect-timeout-ms': '200' });
  const { end, error } = await it.end();
  assert.deepEqual([end, error.code], [undefined, 'deadline_exceeded']);
  const left = async () => {
    const count = await run(`grep -lsa '^sleep.4711[.]25' /proc/[0-9]*/cmdline; true`);
    await count.end();
    return count.printed('stdout');
  };
  await until('no process of it is left', async () => (await left()) === '');
  assert.deepEqual((await rpc('process.Process/List')).body.processes, []);
  assert.deepEqual(purser.problems(), []);
});

test('a terminal echoes, has its size, and is resized', async (t) => {
  const { stream, rpc } = await openInside(t);
  const process = { cmd: '/bin/sh', args: ['-i'], envs: { TERM: 'xterm', PS1: '' } };
  const it = await stream('process.Process/Start', { process, pty: { size: { cols: 90, rows: 20 } } });
  const pid = await it.pid();
  const type = (text: string) => rpc('process.Process/SendInput', { process: { pid }, input: { pty: base64(text) } });
  await type('stty size; echo "pid $$"\n');
  await it.until(new RegExp(`20 90[^]*pid ${pid}\\r\\n`), 'pty');
  assert.equal(
    (await rpc('process.Process/Update', { process: { pid }, pty: { size: { cols: 70, rows: 33 } } })).status,
    200,
  );
  // The size is set beside the program, a moment after the answer.
  await until('the terminal has its new size', async () => {
    await type('stty size\n');
    return it.printed('pty').includes('33 70');
  });
  await type('exit 5\n');
  assert.equal((await it.end()).end.exitCode, 5);
});

test('the variables of a command or a terminal are on no command line, and no file of them is left', async (t) => {
  const { purser, stream } = await openInside(t, { envVars: { HOUSE: 'canary-of-the-sandbox' } });
  const lines: (string | undefined)[] = [];
  for (const { backend } of purser.app.slots.list) {
    const { session, exec } = backend.guest;
    backend.guest.session = (ref, order) => {
      lines.push(order.command);
      return session(ref, order);
    };
    backend.guest.exec = (ref, order) => {
      lines.push(order.command);
      return exec(ref, order);
    };
  }
  const args = ['-c', 'echo "$HOUSE $OWN"; ls -A /tmp "$HOME"'];
  const process = { cmd: '/bin/sh', args, envs: { OWN: 'canary-of-the-command' } };
  for (const [name, more] of [
    ['stdout', { stdin: false }],
    ['pty', { pty: { size: { cols: 200, rows: 20 } } }],
  ] as const) {
    const it = await stream('process.Process/Start', { process, ...more });
    assert.equal((await it.end()).end.exitCode, 0);
    assert.match(it.printed(name), /canary-of-the-sandbox canary-of-the-command/);
    assert.doesNotMatch(it.printed(name), /\.purser-[0-9a-f]{32}/);
  }
  assert.ok(lines.length >= 2);
  assert.doesNotMatch(lines.join('\n'), /canary/);
});

test('without the token of this very sandbox nothing is started, and a user that Basic names is none', async (t) => {
  const { purser, wallet, rpc, run, headers } = await openInside(t);
  const body = { templateID: 'fixed' };
  const other = await purser.ask('POST', '/v1/e2b/v2/sandboxes', { headers: { 'x-api-key': wallet.token }, body });
  for (const wrong of ['', 'ff'.repeat(32), wallet.token, other.body.envdAccessToken])
    assert.equal((await rpc('process.Process/List', {}, { 'x-access-token': wrong })).status, 401);
  const { 'x-access-token': _, ...without } = headers;
  const anonymous = await purser.ask('POST', '/v1/e2b/envd/process.Process/List', { headers: without, body: {} });
  assert.deepEqual([anonymous.status, anonymous.body.code], [401, 'unauthenticated']);
  const named = { authorization: 'Basic cm9vdDo=' };
  assert.equal((await rpc('process.Process/List', {}, named)).status, 200);
  assert.equal((await (await run('true', {}, named)).end()).end.exitCode, 0);
});

test('a sandbox that is gone answers 502 and unavailable', async (t) => {
  const { purser, wallet, sandbox, rpc, run, headers } = await openInside(t);
  const health = async () => (await purser.ask('GET', '/v1/e2b/envd/health', { headers })).status;
  assert.equal(await health(), 204);
  const running = await run('echo on; sleep 1000');
  await running.until('on');
  const key = { 'x-api-key': wallet.token };
  assert.equal((await purser.ask('DELETE', `/v1/e2b/sandboxes/${sandbox.sandboxID}`, { headers: key })).status, 204);
  assert.equal((await running.end()).error.code, 'unavailable');
  assert.equal(await health(), 502);
  const list = await rpc('process.Process/List');
  assert.deepEqual([list.status, list.body.code], [502, 'unavailable']);
  assert.equal((await (await run('true')).end()).error.code, 'unavailable');
});

test('a command whose machine is gone without a word says so, and ends the sandbox', async (t) => {
  const { purser, run, stream, headers } = await openInside(t);
  const running = await run('echo on; sleep 1000');
  await running.until('on');
  for (const { backend } of purser.app.slots.list) {
    backend.inspect = async () => undefined;
    backend.find = async () => [];
    backend.guest.session = async () => {
      throw new Error('there is no such machine');
    };
  }
  assert.equal((await (await run('true')).end()).error.code, 'unavailable');
  const watch = await stream('filesystem.Filesystem/WatchDir', { path: '~' });
  assert.equal((await watch.end()).error.code, 'unavailable');
  assert.equal((await purser.ask('GET', '/v1/e2b/envd/health', { headers })).status, 502);
});

test('a body that is no message of Connect, and a call that is not served, are said to be so', async (t) => {
  const { purser, headers, rpc } = await openInside(t);
  const type = { 'content-type': 'application/connect+json' };
  const cut = await purser.ask('POST', '/v1/e2b/envd/process.Process/Start', {
    headers: { ...headers, ...type },
    body: Buffer.from([0, 0, 0, 0, 9, 123]),
  });
  assert.equal(cut.status, 200);
  assert.match(cut.text, /invalid_argument/);
  const unknown = await rpc('process.Process/Pause');
  assert.deepEqual([unknown.status, unknown.body.code], [501, 'unimplemented']);
});

test('input after its end is refused at once, and named', async (t) => {
  const { rpc, run } = await openInside(t);
  const it = await run('sleep 1000', { stdin: true });
  const process = { pid: await it.pid() };
  const input = { stdin: base64('late') };
  assert.equal((await rpc('process.Process/CloseStdin', { process })).status, 200);
  for (let time = 0; time < 2; time++) {
    const sent = await rpc('process.Process/SendInput', { process, input });
    assert.deepEqual([sent.status, sent.body.code], [400, 'invalid_argument']);
    assert.match(sent.body.message, /standard input was closed/);
  }
});
