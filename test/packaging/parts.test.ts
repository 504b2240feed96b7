import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { createProgram } from '../../cli/program.ts';
import { manPage } from '../../packaging/man.ts';

const read = (name: string) => readFileSync(join(import.meta.dirname, '../..', name), 'utf8');
const { version } = JSON.parse(read('package.json'));

test('every place that repeats the version has that of package.json', () => {
  const places: [file: string, pattern: RegExp][] = [
    ['package-lock.json', /^ {2}"version": "(.+)"/m],
    ['sdk/javascript/package.json', /"version": "(.+)"/],
    ['sdk/javascript/purser.mjs', /export const version = '(.+)'/],
    ['sdk/python/pyproject.toml', /^version = "(.+)"/m],
    ['sdk/python/purser.py', /^__version__ = "(.+)"/m],
    ['README.md', /^\| Version \| ([\d.]+)/m],
    ['CHANGELOG.md', /^## ([\d.]+)/m],
    ['docs/kubernetes.yaml', /registry\.example\.com\/purser:([\d.]+)/],
    ['docs/kubernetes.md', /registry\.example\.com\/purser:([\d.]+)/],
    ['docs/how-do-i.md', /purser_([\d.]+)_amd64/],
    ['docs/how-do-i.md', /purser-([\d.]+)-image\.tar/],
  ];
  for (const [file, pattern] of places) assert.equal(pattern.exec(read(file))?.[1], version, `${file}: ${pattern}`);
});

test('the man page has every command, and no line that troff takes for a request', () => {
  const page = manPage(createProgram(), '1.2.3', 0);
  assert.match(page, /^\.TH PURSER 1 1970-01-01 "purser 1\.2\.3"$/m);
  for (const it of ['serve', 'wallet create', 'master\\-key rotate', 'backup <file>'])
    assert.ok(page.includes(`\n.B ${it}\n`), it);
  assert.doesNotMatch(page, /candidates/, 'what is hidden from the help is hidden here');
  const requests = page.split('\n').filter((it) => /^[.']/.test(it) && !/^\.(TH|SH|TP|B|RI|I)( |$)/.test(it));
  assert.deepEqual(requests, []);
});
