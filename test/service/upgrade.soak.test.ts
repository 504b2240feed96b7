import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { hash } from 'node:crypto';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE } from '../helper/executable.ts';
import { bootMachine } from '../helper/systemd.ts';
import { until } from '../helper/waiting.ts';

const ROOT = join(import.meta.dirname, '../..');
const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
const NEXT = version.replace(/\d+$/, (it: string) => String(Number(it) + 1));
const SOURCES = ['src', 'cli', 'migrations', 'sdk', 'build.mjs', 'build-notices.mjs', 'package-lock.json', 'LICENSE'];

/** Builds the sources as they are here, under the next version. */
function buildNext(directory: string): string {
  const at = join(directory, 'sources');
  mkdirSync(at);
  execFileSync('cp', ['-a', ...SOURCES.map((it) => join(ROOT, it)), at]);
  // Its packages are hard links where they can be: a symbolic link would lead back.
  execFileSync('sh', [
    '-c',
    'cp -al "$0" "$1" 2>/dev/null || cp -a "$0" "$1"',
    join(ROOT, 'node_modules/.'),
    join(at, 'node_modules'),
  ]);
  const manifest = readFileSync(join(ROOT, 'package.json'), 'utf8');
  writeFileSync(join(at, 'package.json'), manifest.replace(`"version": "${version}"`, `"version": "${NEXT}"`));
  execFileSync(process.execPath, ['build.mjs'], { cwd: at, stdio: ['ignore', 'ignore', 'inherit'] });
  return join(at, 'dist/purser');
}

/** Makes a directory as a release has it, with the sums of these files and their signature. */
function openRelease(t: TestContext, files: Record<string, string | { copyOf: string }>) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-upgrade-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  for (const [name, content] of Object.entries(files)) {
    mkdirSync(join(directory, name));
    const file = join(directory, name, 'purser');
    if (typeof content === 'string') writeFileSync(file, content);
    else copyFileSync(content.copyOf, file);
    writeFileSync(join(directory, name, 'SHA256SUMS'), `${hash('sha256', readFileSync(file))}  purser\n`);
  }
  const key = join(directory, 'key');
  execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', key]);
  const sign = (name: string, namespace = 'purser-release') =>
    execFileSync('ssh-keygen', ['-q', '-Y', 'sign', '-f', key, '-n', namespace, join(directory, name, 'SHA256SUMS')]);
  return { directory, sign, publicKey: readFileSync(`${key}.pub`, 'utf8').trim() };
}

/** A program that is the next version, except for the commands that `cases` of a shell's `case` change. */
const except = (cases: string) => `#!/bin/sh\ncase "$*" in\n${cases}\nesac\nexec /opt/next "$@"\n`;

test('an upgrade replaces a running service, and goes back by itself wherever it fails', async (t) => {
  if (!hasComponent(t, 'release')) return;
  const work = mkdtempSync(join(tmpdir(), 'purser-next-'));
  t.after(() => rmSync(work, { recursive: true, force: true }));
  const next = buildNext(work);
  const { directory, sign, publicKey } = openRelease(t, {
    next: { copyOf: next },
    unsigned: { copyOf: next },
    foreign: { copyOf: next },
    changed: { copyOf: next },
    arm: `\x7fELF${'\0'.repeat(14)}\x07\0${'\0'.repeat(64)}`,
    older: except(`*version*) echo '{"version":"0.0.9","bundle_sha256":"0"}'; exit;;`),
    config: except(`*config*check*) echo 'no such setting'; exit 1;;`),
    migration: except(`*restore*) echo 'it cannot be migrated' >&2; exit 1;;`),
    verify: except(`*ledger*verify*) echo 'a balance is wrong' >&2; exit 1;;`),
    start: except(`serve) echo 'it cannot start' >&2; exit 2;;`),
    books: except(`serve) /opt/next account credit default 1.00; exit 2;;`),
    quiet: except(`serve) /opt/next operator-key mint --name meanwhile >/dev/null; exit 2;;`),
    damage: except(`serve) echo damaged > /var/lib/purser/purser.db; echo > /var/lib/purser/ledger.clock; exit 2;;`),
    // It books what the files beside the books do not say, as on a full disk.
    marks: except(
      `serve) cd /var/lib/purser; mkdir marks; cp ledger.head ledger.tip marks; /opt/next account credit default 1.00; mv marks/* .; rmdir marks; exit 2;;`,
    ),
    // It ends when the test says so, however busy the machine is.
    slow: except(`serve) while [ ! -e /run/end ]; do sleep 0.1; done; exit 2;;`),
  });
  for (const it of [
    'next',
    'changed',
    'older',
    'config',
    'migration',
    'verify',
    'start',
    'books',
    'quiet',
    'marks',
    'damage',
    'slow',
    'arm',
  ])
    sign(it);
  sign('foreign', 'another');
  writeFileSync(join(directory, 'changed/purser'), '#!/bin/sh\n');
  const machine = await bootMachine(
    t,
    ['adduser', 'curl'],
    { [EXECUTABLE]: '/opt/purser', [next]: '/opt/next', [directory]: '/srv' },
    ['/var/lib/purser'],
  );
  if (!machine) return;
  const { sh } = machine;
  /** Returns what a line of shell says, and its exit code. */
  const tried = (line: string) => sh(`{ ${line}; } 2>&1 && echo 'exit 0' || echo "exit $?"`);
  const upgrade = (name: string, option = '') => tried(`purser upgrade /srv/${name}/purser ${option}`);
  const isReady = () =>
    until('the service is ready', () =>
      sh('test -S /var/lib/purser/purser.sock && curl -sf http://127.0.0.1:7420/readyz').catch(() => undefined),
    );

  await sh('/opt/purser install --yes --server http://127.0.0.1:9');
  await isReady();
  await sh('purser account credit default 50.00 && purser wallet create --name a --budget 5.00');
  const books = () => sh('purser --json account list; purser --json wallet list');
  const before = await books();
  const serves = async (what: string) => {
    assert.equal(await sh('systemctl is-active purser'), 'active', what);
    assert.equal(
      await sh('purser version; ls /usr/local/lib/purser/upgrade.json 2>&1 || true'),
      `${version}\nls: cannot access '/usr/local/lib/purser/upgrade.json': No such file or directory`,
      what,
    );
    assert.equal(await books(), before, what);
  };

  assert.match(await upgrade('next'), /The settings trust no key\..*\nexit 4$/);
  await sh(`echo 'upgrade: { trusted_keys: ["${publicKey}"] }' >> /etc/purser/purser.yaml && purser reload`);
  for (const [name, said] of [
    ['unsigned', /There is no file \/srv\/unsigned\/SHA256SUMS\.sig\.\nexit 3$/],
    ['foreign', /SHA256SUMS\.sig is for "another"\. Nothing was changed\..*\nexit 4$/],
    ['changed', /\/srv\/changed\/purser is not what SHA256SUMS names.*\nexit 4$/],
    ['older', /^0\.0\.9 is older than .*, which is installed\. Nothing was changed\.\nexit 4$/m],
    ['arm', /The file is for another processor\. Nothing was changed\.\nexit 4$/],
    ['config', /Nothing was changed: .* does not take the settings: no such setting\nexit 4$/],
    ['migration', /Nothing was changed: .* does not migrate a copy of the books: it cannot be migrated\nexit 4$/],
    ['verify', /Nothing was changed: .* does not verify a copy of the books: a balance is wrong\nexit 4$/],
    ['damage', /serves again, on the books as they were\.\nexit 4$/],
    [
      'start',
      new RegExp(
        `was not installed: It (?:ended soon\\.|does not start: [\\s\\S]*) Its last words: [\\s\\S]*it cannot start[\\s\\S]*${version} serves again, on the books as they were\\.\nexit 4$`,
      ),
    ],
  ] as const) {
    assert.match(await upgrade(name), said, name);
    await serves(name);
    if (/migrat|verify/.test(name))
      assert.equal(await tried('test -e /var/lib/purser/upgrade'), 'exit 1', 'no room lost');
  }
  assert.match(
    await tried('cd /srv/next && setpriv --reuid 65534 --clear-groups purser upgrade purser'),
    /Run it as root\.\nexit 4$/,
  );
  assert.match(await tried('ln -s /srv/next /root/next && purser upgrade /root/next'), /is no regular file|is a link/);
  await sh('mkfifo /root/fifo && cp /srv/next/SHA256SUMS* /root/');
  assert.match(await tried('purser upgrade /root/fifo'), /is no regular file/);

  // What the new version has booked before it failed stays in the books.
  assert.match(await upgrade('books'), /serves again, with what has changed meanwhile\.\nexit 4$/);
  assert.match(await sh('purser --json account list'), /"available_cents":4600/);
  assert.match(await upgrade('marks'), /serves again, with what has changed meanwhile\.\nexit 4$/);
  assert.match(await sh('purser --json account list'), /"available_cents":4700/);
  await sh('purser account debit default 2.00 --reason "as before"');
  await sh('purser ledger verify');

  // So does what moved no money, as the key of an operator.
  assert.match(await upgrade('quiet'), /serves again, with what has changed meanwhile\.\nexit 4$/);
  assert.match(await sh('purser operator-key list'), /meanwhile/);

  // Ended by a kill on its way back, and the machine has served since: what was booked then is kept.
  await sh(`systemctl stop purser && cd /var/lib/purser && rm -rf upgrade/books && install -d -o purser -g purser upgrade/books &&
    cp -p purser.db ledger.* upgrade/books/ && systemctl start purser`);
  await isReady();
  await sh('purser account credit default 3.00');
  await sh(
    `echo '{"step":"back","from":"${version}","to":"${NEXT}","former":"","fresh":"","wasActive":true}' > /usr/local/lib/purser/upgrade.json`,
  );
  assert.match(await tried('purser install --remove'), /An upgrade is under way, or was ended half-way\..*\nexit 4$/);
  assert.match(await upgrade('next'), /on its way back\. .* serves again, with what has changed meanwhile\.\nexit 4$/);
  assert.match(await sh('purser --json account list'), /"available_cents":4800/);

  // A lost terminal ends nothing half-way.
  assert.match(
    await tried(
      'purser upgrade /srv/slow/purser & p=$!; until cmp -s /srv/slow/purser /usr/local/bin/purser; do sleep 0.1; done; kill -HUP $p; kill -TERM $p; touch /run/end; wait $p',
    ),
    /serves again, on the books as they were\.\nexit 4$/,
  );

  // A service that ends and is started again and again is not left stopped.
  await sh(
    `mkdir -p /run/systemd/system/purser.service.d && printf '[Service]\\nExecStartPre=/usr/bin/test -e /run/may-start\\n' > /run/systemd/system/purser.service.d/t.conf && systemctl daemon-reload && { systemctl restart purser || true; }`,
  );
  assert.match(
    await upgrade('next'),
    /is back, on the books as they were|is back on the books as they were, but is not well either/,
  );
  await sh('touch /run/may-start');
  await until('it starts by itself', () => sh('systemctl is-active purser').catch(() => undefined));
  await isReady();

  // Ended by a kill after the new version was put in place: the next run finds it, and goes back or on.
  await sh(
    'rm /run/end; purser upgrade /srv/slow/purser & until cmp -s /srv/slow/purser /usr/local/bin/purser; do sleep 0.1; done; kill -KILL $!; touch /run/end',
  );
  assert.match(await upgrade('next'), /An earlier upgrade from .* was ended while it waited\.[\s\S]*serves again/);
  assert.equal(await sh('systemctl is-active purser'), 'active');

  assert.match(
    await upgrade('next'),
    new RegExp(`^The file is signed by a trusted key\\.\n[\\s\\S]*^${NEXT} serves\\.$[\\s\\S]*exit 0$`, 'm'),
  );
  await isReady();
  assert.equal(await sh('purser version'), NEXT);
  assert.match(await sh('purser wallet list'), /^wal_\w+ +a +active/m);
  await sh('purser ledger verify');
  assert.equal(await sh('find /var/lib/purser ! -user purser'), '', 'root left no file of its own');
  assert.equal(await sh('ls /var/lib/purser/upgrade'), 'backup.db', 'no second copy of the books stays');
  // Ended by a kill near its end: the next run, which finds nothing to do, leaves no second copy either.
  await sh(`cd /var/lib/purser/upgrade && install -d -o purser -g purser books books.part && cp ../purser.db books/
    echo '{"step":"swap","from":"${version}","to":"${NEXT}","former":"","fresh":"'$(sha256sum < /usr/local/bin/purser | cut -d' ' -f1)'","wasActive":true}' > /usr/local/lib/purser/upgrade.json`);
  assert.match(await upgrade('next'), /ended near its end\. .* serves\.\n[\s\S]* is installed already\.\nexit 0$/);
  assert.equal(await sh('ls /var/lib/purser/upgrade'), 'backup.db');
  assert.match(
    await upgrade('unsigned', '--insecure'),
    /who signed it was not checked\.\n.* is installed already\.\nexit 0$/,
  );
  await sh('purser install --remove');
  assert.equal(await tried('test -e /usr/local/lib/purser'), 'exit 1');
});
