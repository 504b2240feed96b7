import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { hash } from 'node:crypto';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { isForOther, isOlder, readRelease } from '../../src/service/release-file.ts';
import { temporaryDirectory } from '../ledger/books.ts';

const CONTENT = 'an executable';
const LINE = `${hash('sha256', CONTENT)}  purser\n`;

function openFile(t: TestContext, sums?: string): string {
  const directory = temporaryDirectory(t);
  writeFileSync(join(directory, 'purser'), CONTENT);
  if (sums !== undefined) writeFileSync(join(directory, 'SHA256SUMS'), sums);
  return join(directory, 'purser');
}

test('without the signature the sum is checked where there is one, and what was left out is said', (t) => {
  for (const [sums, said] of [
    [undefined, 'Neither the sum nor the signature of the file was checked.'],
    [`${'0'.repeat(64)}  other\n${LINE}`, 'The sum of the file is right; who signed it was not checked.'],
    [LINE.replace('  ', ' *'), 'The sum of the file is right; who signed it was not checked.'],
  ] as const) {
    const done: string[] = [];
    assert.equal(readRelease(openFile(t, sums), undefined, done).toString(), CONTENT);
    assert.deepEqual(done, [said]);
  }
  for (const [sums, why] of [
    ['', /does not name purser once/],
    [`${LINE}${LINE}`, /does not name purser once/],
    [LINE.replace('purser', './purser'), /does not name purser once/],
    [`${'0'.repeat(64)}  purser\n`, /is not what SHA256SUMS names/],
  ] as const)
    assert.throws(() => readRelease(openFile(t, sums), undefined, []), why, sums);
});

test('with trusted keys there is no way past the signature', (t) => {
  const file = openFile(t, LINE);
  assert.throws(() => readRelease(file, [], []), /There is no file .*SHA256SUMS\.sig/);
  writeFileSync(`${join(file, '..')}/SHA256SUMS.sig`, 'signed');
  assert.throws(() => readRelease(file, [], []), /SHA256SUMS\.sig is not in the form .* --insecure$/);
});

test('what is no regular file is refused, and not waited for', (t) => {
  const directory = temporaryDirectory(t);
  const at = (name: string) => join(directory, name);
  mkdirSync(at('directory'));
  execFileSync('mkfifo', [at('pipe')]);
  symlinkSync(openFile(t), at('link'));
  assert.throws(() => readRelease(at('directory'), undefined, []), /is no regular file/);
  assert.throws(() => readRelease(at('pipe'), undefined, []), /is no regular file/);
  assert.throws(() => readRelease(at('link'), undefined, []), /is a link/);
  assert.throws(() => readRelease(at('none'), undefined, []), /There is no file/);
});

test('versions are compared as numbers, and processors by the headers of both', () => {
  assert.ok(isOlder('0.9.0', '0.10.0') && isOlder('1.2.3', '1.2.4') && isOlder('9.9.9', '10.0.0'));
  assert.ok(!isOlder('1.2.3', '1.2.3') && !isOlder('0.10.0', '0.9.9'));
  const elf = (machine: number) => {
    const header = Buffer.alloc(64);
    header.writeUInt32BE(0x7f454c46);
    header.writeUInt16LE(machine, 18);
    return header;
  };
  assert.ok(isForOther(elf(183), elf(62)));
  assert.ok(!isForOther(elf(62), elf(62)) && !isForOther(Buffer.from('#!/bin/sh'), elf(62)));
});
