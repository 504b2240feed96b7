import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { stringify } from 'yaml';
import { minimalDebian } from '../helper/minimal-debian.ts';
import { bootMachine } from '../helper/systemd.ts';
import { until } from '../helper/waiting.ts';
import { readBlock, releaseOf, settingsFor } from './release.ts';

const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
const NODE = realpathSync(process.execPath);
const MODEL_PORT = 8000;
/** A model server for the machine, which has neither this network nor Node. */
const MODEL = `require('node:http').createServer((request, response) => request.resume().on('end', () => response.end(JSON.stringify({
  id: 'x', object: 'chat.completion', created: 1, model: 'qwen3-8b',
  choices: [{ index: 0, message: { role: 'assistant', content: 'hello' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 10, completion_tokens: 10, total_tokens: 20 } })))).listen(${MODEL_PORT}, '127.0.0.1')`;
const AS_PURSER = 'runuser -u purser -- env PURSER_DATA=/var/lib/purser purser';

/** Makes a package of the next version, whose settings file is another, beside the one of the release. */
function nextPackage(file: string, to: string): void {
  const script = `dpkg-deb --raw-extract "$0" "$1/tree" && cd "$1/tree" &&
    sed -i 's/^Version: .*/Version: 99.0.0/' DEBIAN/control && echo '# new' >> etc/purser/purser.yaml &&
    dpkg-deb --root-owner-group -Znone --build . "$1/next.deb" && rm -r "$1/tree"`;
  execFileSync('sh', ['-ec', script, file, to], { stdio: 'pipe' });
}

test('five commands of the page: the package serves on a booted Debian, and keeps settings, books and key', async (t) => {
  const release = await releaseOf(t);
  if (!release) return;
  const beside = mkdtempSync(join(tmpdir(), 'purser-packages-'));
  t.after(() => rmSync(beside, { recursive: true, force: true }));
  nextPackage(join(release.directory, `purser_${version}_amd64.deb`), beside);
  mkdirSync(join(beside, 'model'));
  writeFileSync(join(beside, 'model/server.cjs'), MODEL);
  writeFileSync(join(beside, 'model/purser.yaml'), stringify(settingsFor(`http://127.0.0.1:${MODEL_PORT}/v1`)));
  const machine = await bootMachine(t, ['adduser', 'curl'], {
    [release.directory]: '/srv/release',
    [beside]: '/srv/beside',
    [NODE]: '/opt/node',
  });
  if (!machine) return;
  const { sh } = machine;
  await sh('systemd-run --quiet --unit=model /opt/node /srv/beside/model/server.cjs');
  const serves = () => until('it serves', () => sh('curl -sf http://127.0.0.1:7420/readyz').catch(() => undefined));
  const show = (name: string) => sh(`systemctl show purser --property ${name} --value`);
  const modes = (...files: string[]) => sh(`stat -c '%a %U:%G' ${files.join(' ')}`);

  const commands = readBlock('docs/how-do-i.md', 'apt-get install');
  assert.ok(commands.length <= 5, `${commands.length} commands`);
  const said: string[] = [];
  for (const [i, line] of commands.entries()) {
    if (i === 1) await sh('cat /srv/beside/model/purser.yaml >> /etc/purser/purser.yaml'); // Editing is not counted.
    said.push(await sh(`cd /srv/release && ${line}`));
    if (i === 0) {
      assert.deepEqual([await show('ActiveState'), await show('UnitFileState')], ['active', 'enabled']);
      assert.equal(await modes('/etc/purser/purser.yaml', '/var/lib/purser'), '640 root:purser\n700 purser:purser');
      await serves();
    }
  }
  assert.match(said.at(-1) as string, /"choices"/);
  const ledger = () => sh(`${AS_PURSER} ledger verify`);
  assert.match(await ledger(), /every balance agrees/);
  for (const it of [
    'bash-completion/completions/purser',
    'zsh/vendor-completions/_purser',
    'fish/vendor_completions.d/purser.fish',
  ])
    assert.match(await sh(`cat /usr/share/${it}`), /purser/);
  const nobody = await sh('runuser -u nobody -- cat /etc/purser/purser.yaml 2>&1 || true');
  assert.match(nobody, /Permission denied/);

  // Once more the same, then the next version: the settings that were edited stay, with their owner and mode.
  const install = (file: string) => sh(`dpkg --install --force-confdef --force-confold ${file} 2>&1`);
  const settings = () => sh('cat /etc/purser/purser.yaml');
  const edited = await settings();
  await install(`/srv/release/purser_${version}_amd64.deb`);
  const before = await show('MainPID');
  await sh(
    'chmod 600 /etc/purser/purser.yaml && chown purser: /etc/purser/purser.yaml && systemctl disable purser 2>&1',
  );
  await install('/srv/beside/next.deb');
  await serves();
  assert.notEqual(await show('MainPID'), before, 'the new version runs');
  assert.equal(await settings(), edited);
  assert.equal(await modes('/etc/purser/purser.yaml'), '600 purser:purser');
  assert.equal(await show('UnitFileState'), 'disabled', 'as the administrator left it');
  await sh('systemctl enable purser 2>&1 && systemctl stop purser');
  await install('/srv/beside/next.deb');
  assert.equal(await show('ActiveState'), 'inactive', 'what is stopped stays so');
  await sh('systemctl start purser');
  await serves();

  await sh('dpkg --remove purser 2>&1');
  assert.equal(await sh('systemctl is-active purser || true'), 'inactive');
  const kept = '/etc/purser/purser.yaml /var/lib/purser/purser.db /var/lib/purser/master.key';
  await sh(`ls ${kept}`);
  await install(`/srv/release/purser_${version}_amd64.deb`);
  await serves();
  assert.equal(await show('UnitFileState'), 'enabled');
  assert.match(await sh(`${AS_PURSER} account show default`), /9\.99|5\.00/);

  await sh('mkdir /etc/systemd/system/purser.service.d && touch /etc/systemd/system/purser.service.d/backups.conf');
  assert.match(await sh('dpkg --purge purser 2>&1'), /The books and master\.key stay in \/var\/lib\/purser\./);
  assert.equal(
    await sh(
      'ls /etc/purser 2>&1 || true; ls -d /etc/systemd/system/purser* || true; systemctl list-unit-files purser.service --no-legend || true',
    ),
    "ls: cannot access '/etc/purser': No such file or directory",
  );
  assert.equal(
    await modes('/var/lib/purser/purser.db', '/var/lib/purser/master.key'),
    '600 purser:purser\n600 purser:purser',
  );
  await install(`/srv/release/purser_${version}_amd64.deb`);
  await serves();
  assert.match(await ledger(), /every balance agrees/);
});

test('the package installs, upgrades and goes where no systemd runs', async (t) => {
  const release = await releaseOf(t);
  const tree = release && (await minimalDebian(t, ['systemd-sysv', 'adduser', 'curl']));
  if (!release || !tree) return;
  const script = `dpkg --install /srv/purser_${version}_amd64.deb
    purser version
    stat -c '%a %U:%G' /etc/purser/purser.yaml /var/lib/purser
    dpkg --install /srv/purser_${version}_amd64.deb >&2
    dpkg --purge purser
    ls -d /etc/purser /var/lib/purser || true`;
  const nspawn = [
    '--quiet',
    '--directory',
    tree,
    '--volatile=overlay',
    '--private-network',
    '--register=no',
    '--keep-unit',
  ];
  const said = execFileSync(
    'systemd-nspawn',
    [...nspawn, '--pipe', `--bind-ro=${release.directory}:/srv`, 'sh', '-ec', script],
    { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] },
  );
  assert.match(said, new RegExp(`^${version}\n640 root:purser\n700 purser:purser$`, 'm'));
  assert.match(said, /stay in \/var\/lib\/purser\.\n\/var\/lib\/purser\n$/);
});
