// Scenarios of E2B's own SDK, unmodified.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { request } from 'node:http';
import { Sandbox } from 'e2b';
import { play } from './played.mjs';

const text = (data) => Buffer.from(data).toString();
/** The end of a sandbox, in milliseconds from now. */
const [NOW, TEN_MINUTES, TWENTY_MINUTES] = [0, 600_000, 1_200_000];
/** Milliseconds that cost more than the wallet has. */
const DEAR = 86_400_000;

/** Without the SDK's own limit of a minute for each request, which a busy machine exceeds. */
const PATIENT = { requestTimeoutMs: 0 };
/** Its sandboxes would end after 5 minutes. */
const open = (options = {}) =>
  Sandbox.create('base', { ...PATIENT, envs: { HOUSE: 'here' }, timeoutMs: TEN_MINUTES, ...options });
const connect = (id, options = {}) => Sandbox.connect(id, { ...PATIENT, ...options });

/** Asks a server by a host name of Purser's that this machine need not know. */
async function ask(host, headers = {}) {
  const [, port] = host.split(':');
  const asked = request({ host: '127.0.0.1', port, agent: false, headers: { host, ...headers } }).end();
  const [answer] = await once(asked, 'response');
  return { status: answer.statusCode, text: (await answer.toArray()).join('') };
}

await play({
  async 'outputs, exit codes and variables'() {
    const { commands } = await open();
    const heard = [];
    const done = await commands.run('echo "$HOUSE $OWN"; echo no >&2', {
      envs: { OWN: 'mine' },
      onStdout: (it) => heard.push(it),
    });
    assert.deepEqual([done.exitCode, done.stdout, done.stderr], [0, 'here mine\n', 'no\n']);
    assert.equal(heard.join(''), 'here mine\n');
    await assert.rejects(commands.run('exit 3'), { exitCode: 3 });
  },
  async 'a long stream of output is whole'() {
    const { commands } = await open();
    const { stdout } = await commands.run('i=0; while [ $i -lt 20000 ]; do echo "line $i"; i=$((i+1)); done');
    assert.equal(stdout, Array.from({ length: 20_000 }, (_, i) => `line ${i}\n`).join(''));
  },
  async 'input, and its end'() {
    const { commands } = await open();
    const cat = await commands.run('cat', { background: true, stdin: true });
    await commands.sendStdin(cat.pid, 'hi\n');
    await commands.closeStdin(cat.pid);
    assert.equal((await cat.wait()).stdout, 'hi\n');
  },
  async 'a program is listed, killed and gone'() {
    const { commands } = await open();
    const sleep = await commands.run('sleep 1000', { background: true });
    assert.deepEqual(
      (await commands.list()).map((it) => it.pid),
      [sleep.pid],
    );
    assert.equal(await sleep.kill(), true);
    await assert.rejects(sleep.wait(), { exitCode: -1 });
    assert.equal(await commands.kill(sleep.pid), false);
  },
  async 'a program survives its client, and another finds it'() {
    const sandbox = await open();
    const first = await sandbox.commands.run('read line; echo "got $line"', { background: true, stdin: true });
    await first.disconnect();
    const other = await connect(sandbox.sandboxId);
    const again = await other.commands.connect(first.pid);
    await other.commands.sendStdin(first.pid, 'it\n');
    assert.equal((await again.wait()).stdout, 'got it\n');
  },
  async 'a timeout of a command'() {
    const { commands } = await open();
    await assert.rejects(commands.run('sleep 1000', { timeoutMs: 300 }), { name: 'TimeoutError' });
    while ((await commands.list()).length) await new Promise(setImmediate); // The client's own clock may be first.
  },
  async 'a terminal and its size'() {
    const { pty } = await open();
    let shown = '';
    const it = await pty.create({
      cols: 90,
      rows: 20,
      onData(data) {
        shown += text(data);
      },
    });
    const type = (line) => pty.sendInput(it.pid, new TextEncoder().encode(line));
    await type('stty size\n');
    while (!shown.includes('20 90')) await new Promise(setImmediate);
    await pty.resize(it.pid, { cols: 70, rows: 33 });
    while (!shown.includes('33 70')) {
      await type('stty size\n');
      await new Promise(setImmediate);
    }
    await type('exit 4\n');
    await assert.rejects(it.wait(), { exitCode: 4 });
  },
  async 'a file of 50 MiB, there and back'() {
    const { files } = await open();
    const bytes = new Uint8Array(50 * 1024 * 1024).map((_, i) => i * 31 + (i >> 8));
    await files.write('big', new Blob([bytes]));
    const back = await files.read('big', { format: 'bytes' });
    assert.equal(Buffer.compare(Buffer.from(back), Buffer.from(bytes)), 0);
  },
  async 'a thousand small files in one request'() {
    const { files, commands } = await open();
    await files.write(Array.from({ length: 1000 }, (_, i) => ({ path: `many/${i}`, data: `${i}` })));
    assert.equal((await files.list('many')).length, 1000);
    assert.equal((await commands.run('cat many/* | wc -c')).stdout.trim(), '2890');
  },
  async 'directories, entries, moves and removals'() {
    const { files } = await open();
    assert.deepEqual([await files.makeDir('d/e'), await files.makeDir('d/e')], [true, false]);
    await files.write('d/a', 'hello');
    assert.equal((await files.rename('d/a', 'd/e/b')).type, 'file');
    const { size, permissions } = await files.getInfo('d/e/b');
    assert.deepEqual([size, permissions], [5, '-rw-r--r--']);
    const all = await files.list('d', { depth: 2 });
    assert.deepEqual(all.map((it) => it.name).sort(), ['b', 'e']);
    await files.remove('d');
    assert.equal(await files.exists('d'), false);
    await assert.rejects(files.read('d/a'), { name: 'FileNotFoundError' });
  },
  async 'a directory is watched'() {
    const { files } = await open();
    await files.makeDir('w');
    const seen = Promise.withResolvers();
    const watch = await files.watchDir('w', (it) => it.name === 'new' && it.type === 'create' && seen.resolve());
    await files.write('w/new', 'x');
    await seen.promise;
    await watch.stop();
  },
  async 'signed addresses'() {
    const sandbox = await open();
    await sandbox.files.write('signed', 'content');
    const got = await fetch(await sandbox.downloadUrl('signed'));
    assert.deepEqual([got.status, await got.text()], [200, 'content']);
    const form = new FormData();
    form.append('file', new Blob(['up']), 'up');
    const address = await sandbox.uploadUrl('up', { useSignatureExpiration: 60 });
    assert.equal((await fetch(address, { method: 'POST', body: form })).status, 200);
    assert.equal(await sandbox.files.read('up'), 'up');
  },
  async 'description, list, metrics and timeout'() {
    const sandbox = await open({ metadata: { job: 'a b&c=d' } });
    const { items, ends } = { items: [], ends: [] };
    items.push(...(await Sandbox.list({ query: { metadata: { job: 'a b&c=d' } } }).nextItems()));
    assert.deepEqual(
      items.map((it) => it.sandboxId),
      [sandbox.sandboxId],
    );
    ends.push((await sandbox.getInfo()).endAt);
    await sandbox.setTimeout(TWENTY_MINUTES);
    ends.push((await sandbox.getInfo()).endAt);
    assert.ok(ends[1] > ends[0]);
    const [metric] = await sandbox.getMetrics();
    assert.ok(metric.memUsed > 0 && metric.memTotal >= metric.memUsed, JSON.stringify(metric));
    assert.ok(metric.diskUsed > 0 && metric.diskTotal >= metric.diskUsed, JSON.stringify(metric));
    assert.ok(metric.cpuCount >= 1 && metric.cpuUsedPct >= 0, JSON.stringify(metric));
    assert.deepEqual([await sandbox.kill(), await sandbox.kill(), await sandbox.isRunning()], [true, false, false]);
  },
  async 'a wallet that runs dry'() {
    await assert.rejects(Sandbox.create('base', { timeoutMs: DEAR }), /402: .*needs/);
    const sandbox = await open();
    await assert.rejects(sandbox.setTimeout(DEAR), /402: .*needs/);
    await connect(sandbox.sandboxId, { timeoutMs: DEAR });
    assert.equal((await sandbox.commands.run('echo on')).stdout, 'on\n');
  },
  async 'two clients on one sandbox'() {
    const one = await open();
    const two = await connect(one.sandboxId);
    await Promise.all([one.files.write('a', '1'), two.files.write('b', '2')]);
    assert.deepEqual(await Promise.all([two.files.read('a'), one.files.read('b')]), ['1', '2']);
    const sleep = await one.commands.run('sleep 1000', { background: true });
    assert.equal(await two.commands.kill(sleep.pid), true);
    await assert.rejects(sleep.wait(), { exitCode: -1 });
    assert.equal(await two.kill(), true);
    assert.equal(await one.isRunning(), false);
  },
  async 'the end of the time'() {
    const sandbox = await open();
    await sandbox.setTimeout(NOW);
    assert.equal(await sandbox.isRunning(), false);
    await assert.rejects(sandbox.commands.run('true'), { name: 'SandboxNotFoundError' });
    await assert.rejects(sandbox.files.read('x'), { name: 'TimeoutError' });
    await assert.rejects(connect(sandbox.sandboxId), { name: 'SandboxNotFoundError' });
  },
  async 'an Idempotency-Key gives the same sandbox again'() {
    const keyed = () => open({ apiHeaders: { 'Idempotency-Key': 'k' } });
    const [one, two, other] = [await keyed(), await keyed(), await open()];
    assert.equal(one.sandboxId, two.sandboxId);
    assert.notEqual(one.sandboxId, other.sandboxId);
  },
  async 'a port by its host name'() {
    const sandbox = await open();
    await sandbox.files.write('/tmp/www/index.html', 'page');
    await sandbox.commands.run('httpd -f -p 8000 -h /tmp/www', { background: true });
    const host = sandbox.getHost(8000);
    const token = { 'e2b-traffic-access-token': sandbox.trafficAccessToken };
    while ((await ask(host, token)).status === 502) await new Promise(setImmediate); // It does not listen yet.
    assert.deepEqual(await ask(host, token), { status: 200, text: 'page' });
    assert.equal((await ask(host)).status, 401);
  },
  async 'twenty commands at once'() {
    const { commands } = await open();
    const done = await Promise.all(Array.from({ length: 20 }, (_, i) => commands.run(`echo ${i}`)));
    assert.deepEqual(
      done.map((it) => it.stdout),
      done.map((_, i) => `${i}\n`),
    );
  },
  async 'a file as a stream, there and back'() {
    const { files } = await open();
    const pieces = ['one ', 'two ', 'three'];
    await files.write('/tmp/stream', ReadableStream.from(pieces.map((it) => new TextEncoder().encode(it))));
    let back = '';
    for await (const piece of await files.read('/tmp/stream', { format: 'stream' })) back += text(piece);
    assert.equal(back, pieces.join(''));
  },
  async 'directories of commands, and named users'() {
    const { commands } = await open();
    assert.equal((await commands.run('pwd', { cwd: '/tmp', user: 'root' })).stdout, '/tmp\n');
    await assert.rejects(commands.run('true', { cwd: '/nowhere' }), { name: 'InvalidArgumentError' });
  },
});
