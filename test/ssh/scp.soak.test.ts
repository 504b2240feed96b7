import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import {
  chmodSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { dirname } from 'node:path';
import test from 'node:test';
import { openSlurm } from '../compute/engines/slurm.ts';
import { openSshd } from '../compute/engines/sshd.ts';
import { openTestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { type Lease, openLease, reachLease } from './lease.ts';

const MIB = 1024 * 1024;
const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
const insideSum = async (it: Lease, path: string) => (await it.inside(`sha256sum "${path}"`)).slice(0, 64);
const speed = (bytes: number, began: number) =>
  `${Math.round(bytes / MIB / ((performance.now() - began) / 1000))} MiB/s`;

test('scp brings files of every size in and out, byte for byte', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  for (const bytes of [0, 1, 32_767, 32_768, 131_073, 20 * MIB]) {
    const content = randomBytes(bytes);
    writeFileSync(it.at('file'), content);
    let began = performance.now();
    await it.good('scp', 'file', `${it.target}:/tmp/file`);
    if (bytes === 20 * MIB) t.diagnostic(`in ${speed(bytes, began)}`);
    assert.equal(await insideSum(it, '/tmp/file'), sha256(content), `${bytes} bytes in`);
    began = performance.now();
    await it.good('scp', `${it.target}:/tmp/file`, 'back');
    if (bytes === 20 * MIB) t.diagnostic(`out ${speed(bytes, began)}`);
    assert.ok(readFileSync(it.at('back')).equals(content), `${bytes} bytes out`);
  }
  writeFileSync(it.at('short'), 'short');
  await it.good('scp', 'short', `${it.target}:/tmp/file`);
  assert.equal(await it.inside('cat /tmp/file'), 'short', 'nothing is left of the longer file');
});

test('scp -rp brings a tree in and out, with its permissions and times', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const names = ['plain', 'with space', "it's", 'say "it"', '-dash', '$(reboot)', 'größe', '*', 'line\nbreak'];
  for (const [index, folder] of ['', 'a', 'a/b', 'a/b/deep folder', 'empty'].entries()) {
    mkdirSync(it.at(`tree/${folder}`), { recursive: true });
    if (folder === 'empty') continue;
    for (const name of names) {
      const path = it.at(`tree/${folder}/${name}`);
      writeFileSync(path, `${folder} ${name}`);
      chmodSync(path, [0o644, 0o755, 0o600, 0o444][index % 4] as number);
      utimesSync(path, 1_000_000_000 + index, 1_100_000_000 + index);
    }
  }
  await it.good('scp', '-rp', 'tree', `${it.target}:/tmp/`);
  await it.good('scp', '-rp', `${it.target}:/tmp/tree`, 'back');
  const facts = (root: string) =>
    readdirSync(it.at(root), { recursive: true, encoding: 'utf8' })
      .sort()
      .map((name) => {
        const { mode, mtimeMs } = statSync(it.at(`${root}/${name}`));
        const isFile = (mode & 0o170000) === 0o100000;
        return [name, mode, isFile && mtimeMs, isFile && readFileSync(it.at(`${root}/${name}`), 'utf8')];
      });
  assert.deepEqual(facts('back'), facts('tree'));
});

test('sftp does what its commands say, and goes on where a transfer was cut', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const content = randomBytes(3 * MIB);
  writeFileSync(it.at('whole'), content);
  writeFileSync(it.at('part'), content.subarray(0, MIB + 77));
  const said = await it.sftp([
    'mkdir /tmp/folder',
    'cd /tmp/folder',
    'put part "the file"',
    'reput whole "the file"',
    'get "the file" back',
    'ls -l',
    'rename "the file" renamed',
    'ln -s renamed link',
    'ln renamed hard',
    'chmod 640 renamed',
    'ls -1',
    'df',
    'mkdir inner',
    'rmdir inner',
    'rm hard',
    'put -f part synced',
    'pwd',
  ]);
  assert.equal(said.code, 0, said.stderr);
  assert.ok(readFileSync(it.at('back')).equals(content));
  assert.match(
    said.stdout,
    new RegExp(`^-rw-r--r-- +1 \\S+ +\\S+ +${content.length} \\w{3} [ \\d]\\d \\d\\d:\\d\\d the file$`, 'm'),
  );
  assert.match(said.stdout, /^hard\s+link\s+renamed\s*$/m);
  assert.match(said.stdout, /^Remote working directory: \/tmp\/folder$/m);
  assert.equal(await insideSum(it, '/tmp/folder/link'), sha256(content));
  assert.match(await it.inside('ls -l /tmp/folder/renamed'), /^-rw-r-----/);

  writeFileSync(it.at('rest'), content.subarray(0, 2 * MIB + 5));
  assert.equal((await it.sftp(['reget /tmp/folder/renamed rest'])).code, 0);
  assert.ok(readFileSync(it.at('rest')).equals(content));
});

test('what cannot be done is an error of the client, and leaves what was there', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  writeFileSync(it.at('file'), 'content');
  const fails = async (program: string, args: string[], words: RegExp) => {
    const { code, stderr } = await it.run(program, args);
    assert.notEqual(code, 0, args.join(' '));
    assert.match(stderr, words);
  };
  await fails('scp', ['file', `${it.target}:/tmp/missing/file`], /No such file or directory/);
  await fails('scp', [`${it.target}:/tmp/missing`, 'back'], /No such file or directory/);
  await fails('scp', ['file', `${it.target}:/sys/file`], /Permission denied|Failure/);
  await fails('scp', [`${it.target}:/tmp`, 'back'], /not a regular file/);
  await it.inside('mkdir /tmp/sealed; chmod 0 /tmp/sealed');
  await fails('scp', ['file', `${it.target}:/tmp/sealed/file`], /Permission denied/);
  for (const line of [
    'rm /tmp/none',
    'rmdir /proc',
    'mkdir /tmp',
    'get /tmp/none',
    'rename /tmp/none /tmp/other',
    'cd /x',
  ])
    assert.equal((await it.sftp([line])).code, 1, line);
  await it.inside('df -k /dev/shm | grep -q shm');
  writeFileSync(it.at('large'), Buffer.alloc(80 * MIB, 'x'));
  await fails('scp', ['large', `${it.target}:/dev/shm/large`], /Failure/);
  assert.equal((await it.sftp(['rm /dev/shm/large', 'put file /dev/shm/file'])).code, 0, 'there is room again');
  assert.equal(await it.inside('cat /dev/shm/file'), 'content');
});

test('the older protocol of scp needs scp inside, and says so where it is missing', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  writeFileSync(it.at('file'), randomBytes(MIB));
  const { code, stderr } = await it.run('scp', ['-O', 'file', `${it.target}:/tmp/file`]);
  assert.notEqual(code, 0);
  assert.match(stderr, /scp: not found/);

  const program = execFileSync('sh', ['-c', 'readlink -f "$(command -v scp)"'], { encoding: 'utf8' }).trim();
  const libraries = execFileSync('ldd', [program], { encoding: 'utf8' }).match(/\/\S+/g) as string[];
  for (const path of [program, ...libraries]) {
    await it.inside(`mkdir -p ${dirname(path)}`);
    await it.good('scp', '-p', path, `${it.target}:${path}`);
  }
  await it.inside(`ln -sf ${program} /bin/scp; echo root:x:0:0::/:/bin/sh > /etc/passwd`);
  await it.good('scp', '-O', 'file', `${it.target}:/tmp/old`);
  await it.good('scp', '-O', `${it.target}:/tmp/old`, 'back');
  assert.ok(readFileSync(it.at('back')).equals(readFileSync(it.at('file'))));
});

test('a client that dies in the middle leaves nothing that runs, and what it wrote can be gone on with', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const content = randomBytes(8 * MIB);
  writeFileSync(it.at('file'), content);
  const count = async () => Number(await it.inside('ps -o args | wc -l'));
  // The least of a few looks: helpers of the watchdog and of the looking itself come and go.
  const before = Math.min(await count(), await count(), await count(), await count(), await count());
  const slow = it.run('scp', ['-l', '8000', 'file', `${it.target}:/tmp/file`]);
  await until(
    'a part of the file is there',
    async () => Number(await it.inside('cat /tmp/file 2>/dev/null | wc -c')) > 0,
  );
  slow.child.kill('SIGKILL'); // Its ssh ends with it.
  await slow;
  await it.runs('LC_ALL', false);
  await until('nothing of it runs', async () => (await count()) <= before);
  const left = Number(await it.inside('wc -c < /tmp/file'));
  assert.ok(left < content.length, `${left} bytes`);
  assert.equal((await it.sftp(['reput file /tmp/file'])).code, 0);
  assert.equal(await insideSum(it, '/tmp/file'), sha256(content));
});

test('a large file does not pass through memory, whichever way it goes', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  // A busy machine collects late: up to 160 MiB, however large the file is.
  const bytes = 512 * MIB;
  writeFileSync(it.at('large'), '');
  truncateSync(it.at('large'), bytes);
  const before = it.resident();
  let peak = 0;
  const poll = setInterval(() => {
    peak = Math.max(peak, it.resident() - before);
  }, 20);
  t.after(() => clearInterval(poll));
  let began = performance.now();
  await it.good('scp', 'large', `${it.target}:/tmp/large`);
  t.diagnostic(`in ${speed(bytes, began)}, at most ${Math.round(peak / MIB)} MiB more resident`);
  assert.equal(Number(await it.inside('wc -c < /tmp/large')), bytes);
  assert.ok(peak < bytes / 2, `${peak} bytes`);
  peak = 0;
  began = performance.now();
  await it.good('scp', `${it.target}:/tmp/large`, '/dev/null');
  t.diagnostic(`out ${speed(bytes, began)}, at most ${Math.round(peak / MIB)} MiB more resident`);
  assert.ok(peak < bytes / 2, `${peak} bytes`);
});

test('the same through a pool host and a cluster: another user, another road into the machine', async (t) => {
  const [pool, cluster] = [await openSshd(t), await openSlurm(t)];
  if (!pool || !cluster) return;
  t.after(() => cluster.stop());
  const chip = { cpus: 1, memory_gib: 0.2, price_hourly_usd: '0.10' };
  const backends: [object, string][] = [
    [{ backend: 'ssh', hosts: [{ ...pool.host, price_hourly_usd: '0.40' }] }, pool.host.chip],
    [{ backend: 'slurm', job_user: 'nobody', slurm_conf: cluster.conf, chips: { small: chip } }, 'small'],
  ];
  for (const [provider_two, chip] of backends) {
    const purser = await openTestServer(t, { settings: { compute: { provider_two } } });
    const wallet = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
    const it = await reachLease(t, purser, wallet, { provider: 'provider_two', spec: { chip, max_seconds: 600 } });
    const content = randomBytes(5 * MIB);
    mkdirSync(it.at('tree/inner'), { recursive: true });
    writeFileSync(it.at('tree/a file'), content);
    writeFileSync(it.at("tree/inner/it's\nanother"), 'another', { mode: 0o400 });
    const began = performance.now();
    await it.good('scp', '-rp', 'tree', `${it.target}:`);
    t.diagnostic(`${chip}: ${Math.round(performance.now() - began)} ms for a tree of 5 MiB`);
    assert.equal((await it.ssh([], "sha256sum 'tree/a file'")).stdout.slice(0, 64), sha256(content));
    await it.good('scp', '-rp', `${it.target}:tree`, 'back');
    execFileSync('diff', ['-r', it.at('tree'), it.at('back')]);
    assert.equal((await it.ssh([], 'stat -c %a "$(echo tree/inner/*)"')).stdout, '400\n');
    const refused = await it.run('scp', ['tree/a file', `${it.target}:/etc/no-such-file`]);
    assert.match(refused.stderr, /Permission denied/);
  }
});
