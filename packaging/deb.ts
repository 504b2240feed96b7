import {
  chmodSync,
  copyFileSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { type Architecture, run } from './tools.ts';

/** What every architecture's package has beside the executable, by path. */
export type Files = Readonly<Record<string, string | Buffer>>;

const SETTINGS = '/etc/purser/purser.yaml';
const SCRIPTS = ['postinst', 'prerm', 'postrm'];

/** Writes the Debian package of one architecture. */
export function writePackage(
  file: string,
  {
    architecture,
    version,
    executable,
    files,
    seconds,
  }: { architecture: Architecture; version: string; executable: string; files: Files; seconds: number },
): void {
  const tree = mkdtempSync(join(tmpdir(), 'purser-deb-'));
  const put = (path: string, content: string | Buffer, mode = 0o644) => {
    const to = join(tree, path);
    mkdirSync(dirname(to), { recursive: true });
    writeFileSync(to, content);
    chmodSync(to, mode);
  };
  try {
    chmodSync(tree, 0o755);
    for (const [path, content] of Object.entries(files)) put(path, content, path === SETTINGS ? 0o640 : 0o644);
    mkdirSync(join(tree, 'usr/bin'));
    copyFileSync(executable, join(tree, 'usr/bin/purser'));
    chmodSync(join(tree, 'usr/bin/purser'), 0o755);

    const kilobytes = globSync('**/*', { cwd: tree }).reduce(
      (sum, it) => sum + Math.ceil(statSync(join(tree, it)).size / 1024),
      0,
    );
    const control = readFileSync('packaging/debian/control', 'utf8')
      .replace('@VERSION@', version)
      .replace('@ARCHITECTURE@', architecture.debian)
      .replace('@SIZE@', String(kilobytes));
    put('DEBIAN/control', control);
    put('DEBIAN/conffiles', `${SETTINGS}\n`);
    const sums = run(
      'sh',
      ['-c', "find * -path DEBIAN -prune -o -type f -print0 | grep -zv '^etc/' | sort -z | xargs -0 md5sum"],
      { cwd: tree },
    );
    put('DEBIAN/md5sums', sums);
    for (const it of SCRIPTS) put(`DEBIAN/${it}`, readFileSync(join('packaging/debian', it)), 0o755);
    // dpkg-deb takes the time of its members from SOURCE_DATE_EPOCH, which packaging/release.ts sets.
    run('touch', ['--no-dereference', `--date=@${seconds}`, ...globSync('**/*', { cwd: tree })], { cwd: tree });
    run('dpkg-deb', ['--root-owner-group', '-Zxz', '-z1', '--build', tree, file]);
  } finally {
    rmSync(tree, { recursive: true, force: true });
  }
}

/** Returns what the package has for everyone: unit, settings, completions, man page and notices. */
export function sharedFiles(
  version: string,
  seconds: number,
  made: { unit: string; settings: string; man: string; completion: (shell: string) => string; notices: string },
): Files {
  const zipped = (text: string) => gzipSync(text, { level: 9 });
  const changes = `purser (${version}) stable; urgency=medium

  * See /usr/share/doc/purser/NEWS.gz.

 -- The Purser authors <purser@purser.invalid>  ${new Date(seconds * 1000).toUTCString().replace('GMT', '+0000')}
`;
  return {
    [SETTINGS]: made.settings,
    '/lib/systemd/system/purser.service': made.unit,
    '/usr/share/bash-completion/completions/purser': made.completion('bash'),
    '/usr/share/zsh/vendor-completions/_purser': made.completion('zsh'),
    '/usr/share/fish/vendor_completions.d/purser.fish': made.completion('fish'),
    '/usr/share/man/man1/purser.1.gz': zipped(made.man),
    '/usr/share/doc/purser/copyright': readFileSync('packaging/debian/copyright', 'utf8'),
    '/usr/share/doc/purser/notices.gz': zipped(made.notices),
    '/usr/share/doc/purser/NEWS.gz': zipped(readFileSync('CHANGELOG.md', 'utf8')),
    '/usr/share/doc/purser/changelog.gz': zipped(changes),
    '/usr/share/lintian/overrides/purser': readFileSync('packaging/debian/lintian-overrides', 'utf8'),
  };
}
