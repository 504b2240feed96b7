// Scenarios of E2B's own SDK, unmodified, in a process of its own. Each has its name; the first argument lists those that run. Prints
// a line of JSON for each: its name, and the error if it failed.
import assert from 'node:assert/strict';
import { Sandbox } from 'e2b';

const [names, id] = process.argv.slice(2);
const text = (data) => Buffer.from(data).toString();

const SCENARIOS = {
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
    const other = await Sandbox.connect(sandbox.sandboxId);
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
    await sandbox.setTimeout(600_000);
    ends.push((await sandbox.getInfo()).endAt);
    assert.ok(ends[1] > ends[0]);
    // None where the kernel does not tell.
    for (const metric of await sandbox.getMetrics()) assert.ok(metric.memTotal > 0 && metric.diskTotal > 0);
    assert.deepEqual([await sandbox.kill(), await sandbox.kill(), await sandbox.isRunning()], [true, false, false]);
  },
  async 'a wallet that runs dry'() {
    await assert.rejects(Sandbox.create('base', { timeoutMs: 86_400_000 }), /402|needs/);
  },
  /** For a restart: leaves a file, and prints the sandbox. */
  async leave() {
    const sandbox = await open();
    await sandbox.files.write('left', 'before');
    process.stdout.write(`${JSON.stringify({ sandbox: sandbox.sandboxId })}\n`);
  },
  async 'after a restart'() {
    const sandbox = await Sandbox.connect(id);
    assert.equal(await sandbox.files.read('left'), 'before');
    assert.equal((await sandbox.commands.run('echo "$HOUSE"')).stdout, 'here\n');
    assert.equal(await sandbox.kill(), true);
  },
};

const open = (options = {}) => Sandbox.create('base', { envs: { HOUSE: 'here' }, ...options });

for (const name of names === 'all' ? Object.keys(SCENARIOS).slice(0, -2) : [names]) {
  const error = await SCENARIOS[name]().then(
    () => undefined,
    (it) => `${it.stack}`,
  );
  // The capacity of a test's engine is small.
  if (name !== 'leave') for (const it of await Sandbox.list().nextItems()) await Sandbox.kill(it.sandboxId);
  process.stdout.write(`${JSON.stringify({ name, error })}\n`);
}
