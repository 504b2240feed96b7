import assert from 'node:assert/strict';
import test from 'node:test';
import { readArchive } from '../../src/compute/machine/archive.ts';
import { createLinkListReader } from '../../src/compute/machine/link-list.ts';
import { createLinkTree } from '../../src/compute/machine/link-tree.ts';
import { END, member } from '../http/trees-shared.ts';

// The work and the memory of a tree that somebody uploads, in counts: both grow with its bytes, whatever it is made of.

const OWNER = { user: 0, group: 0 };

function openReader(links: string[] = []) {
  let taken = 0;
  const take = (bytes: number) => {
    taken += bytes;
    return true;
  };
  return { reader: readArchive({ directory: '/work', owner: OWNER, links, take }), taken: () => taken };
}

/** Runs `act`, and returns how many characters were looked up in maps and sets, and searched in strings, meanwhile. */
function characters(act: () => void): number {
  let count = 0;
  const [get, has, indexOf] = [Map.prototype.get, Set.prototype.has, String.prototype.indexOf];
  Map.prototype.get = function (key) {
    if (typeof key === 'string') count += key.length;
    return get.call(this, key);
  };
  Set.prototype.has = function (key) {
    if (typeof key === 'string') count += key.length;
    return has.call(this, key);
  };
  String.prototype.indexOf = function (text, from = 0) {
    const at = indexOf.call(this, text, from);
    count += (at < 0 ? this.length : at + text.length) - from;
    return at;
  };
  try {
    act();
  } finally {
    Object.assign(Map.prototype, { get });
    Object.assign(Set.prototype, { has });
    Object.assign(String.prototype, { indexOf });
  }
  return count;
}

/** An entry with a name of GNU's long form. */
const long = (name: string, type = '0', linkName = '') =>
  Buffer.concat([
    member({ name: '././@LongLink', type: 'L', content: `${name}\0` }),
    member({ name: 'x', type, linkName }),
  ]);

test('a name of thousands of parts costs its length, also where there are links', () => {
  const parts = Array.from({ length: 2000 }, () => 'd');
  const deep = (last: string) => [...parts, last].join('/');
  const { reader } = openReader(['link']);
  const all = Buffer.concat([
    long(deep('l'), '2', 'target'),
    ...Array.from({ length: 100 }, (_, i) => long(deep(`f${i}`))),
    END,
  ]);
  const count = characters(() => {
    assert.equal(reader.push(all).fault, undefined);
    reader.finish();
  });
  assert.equal(reader.passed().entries, 101);
  assert(count < 3 * all.length, `${count} characters for ${all.length} bytes`);
  // And what it is for still holds.
  for (const through of [deep('l/x'), `${deep('l')}/y/z`, 'link/x'])
    assert.match(openedWith(deep('l'), through) ?? '', /leads through the symbolic link/);
});

/** Returns the fault of an entry of this name, with a link at `link` and at `known`. */
function openedWith(link: string, name: string): string | undefined {
  const { reader } = openReader(['link']);
  return reader.push(Buffer.concat([long(link, '2', 'target'), long(name)])).fault?.message;
}

test('files need no memory beside their bytes, and each link the memory of its parts', () => {
  const { reader, taken } = openReader();
  const piece = Buffer.concat(Array.from({ length: 128 }, () => member({ name: 'f' })));
  let passed = 0;
  for (let round = 0; round < 100; round++) for (const it of reader.push(piece).pieces) passed += it.length;
  assert.deepEqual([reader.passed().entries, passed, taken()], [12_800, 100 * piece.length, 0]);
  const links = 1000;
  for (let i = 0; i < links; i++)
    assert.equal(reader.push(member({ name: `a/b/${i}`, type: '2', linkName: 't' })).fault, undefined);
  assert(taken() > links * 64 && taken() < (links + 2) * 1024, String(taken()));
  // The same link again, as a million times over, needs none.
  const before = taken();
  for (let i = 0; i < 100; i++) reader.push(member({ name: 'a/b/7', type: '2', linkName: 't' }));
  assert.equal(taken(), before);
});

test('links for which there is no memory are refused', () => {
  let left = 100_000;
  const take = (bytes: number) => {
    left -= bytes;
    return left >= 0;
  };
  const reader = readArchive({ directory: '/work', owner: OWNER, links: [], take });
  let entries = 0;
  for (; entries < 10_000; entries++) {
    const { fault } = reader.push(member({ name: `l${entries}`, type: '2', linkName: 't' }));
    if (fault)
      return void assert.match(`${entries} ${fault.message}`, /^\d{3} has more symbolic links than there is memory/);
  }
  assert.fail('a million links would be kept');
});

test('a tree of links finds the shortest one on a path, and forgets one that is replaced', () => {
  const tree = createLinkTree(() => true);
  for (const it of ['a/b', 'a/b/c/d', 'e']) tree.add(it);
  for (const [path, found] of [
    ['a', undefined],
    ['a/b', 'a/b'],
    ['a/bc', undefined],
    ['a/b/c/d/e', 'a/b'],
    ['e/f', 'e'],
    ['f/e', undefined],
    ['__proto__/a', undefined],
  ] as const)
    assert.equal(tree.find(path), found, path);
  tree.remove('a/b');
  tree.remove('a/x/y');
  assert.deepEqual([tree.find('a/b'), tree.find('a/b/c/d/e')], [undefined, 'a/b/c/d']);
});

test('the list of links is looked at once, however small its pieces are', () => {
  const names = Array.from({ length: 2000 }, (_, i) => `./link/${i}`);
  const text = Buffer.from(`${names.join('\n')}\n//\nwhole\n`);
  let listed: ReturnType<ReturnType<typeof createLinkListReader>['push']>;
  let rest = '';
  const reader = createLinkListReader(1024 * 1024);
  const count = characters(() => {
    for (const byte of text) {
      if (listed) rest += String.fromCharCode(byte);
      else listed = reader.push(Buffer.from([byte]));
    }
  });
  assert.deepEqual([listed, rest], [{ names: names.map((it) => it.slice(2)), rest: '' }, 'whole\n']);
  assert(count < 8 * text.length, `${count} characters for ${text.length} bytes`);
  assert.deepEqual(createLinkListReader(100).push(Buffer.from('//\nfailed\n')), { names: [], rest: 'failed\n' });
  const endless = createLinkListReader(100);
  assert.equal(endless.push(Buffer.alloc(101, 'a')), 'tooLong');
  assert.equal(endless.push(Buffer.from('\n//\n')), 'tooLong');
});
