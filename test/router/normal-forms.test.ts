import assert from 'node:assert/strict';
import test from 'node:test';
import { textBytes } from '../../src/router/rendered.ts';
import { assertLinear, assertWithin } from '../helper/cpu.ts';
import { createRandom, length, SEED } from '../helper/random.ts';

// A prompt is bounded by the bytes of its text in the normal form that a tokenizer applies first. Forming it takes the square of the
// length of a run of marks, so that is done in chunks: what is cut must neither take long nor count too little.

const FORMS = ['NFC', 'NFKC'] as const;
const all = Array.from({ length: 0x110000 }, (_, code) => code)
  .filter((code) => code < 0xd800 || code > 0xdfff)
  .map((code) => String.fromCodePoint(code));
const composed = all.filter((it) => it.normalize('NFD') !== it);
const marks = all.filter((it) => /\p{M}/u.test(it));
/** The longest normal form, and the text itself. */
const bytesOf = (text: string) =>
  Math.max(Buffer.byteLength(text), ...FORMS.map((form) => Buffer.byteLength(text.normalize(form))));

test('a text is never counted at less than its normal forms, wherever its chunks end', () => {
  for (const character of composed)
    for (const fill of [0, 1, 2, 3, 126, 127]) {
      const text = 'ä'.repeat(fill) + `${character}\u0323\u0301\u3099`.repeat(40);
      assert(textBytes(text) >= bytesOf(text), `U+${character.codePointAt(0)?.toString(16)} after ${fill}`);
    }
});

test(`nor are random runs of marks and what they stand on (seed ${SEED})`, () => {
  const random = createRandom(SEED);
  for (let i = 0; i < length(3000, 100_000); i++) {
    let text = '';
    while (text.length < random.whole(100, 600)) {
      text += random.pick(random.whole(0, 3) ? composed : all);
      for (let run = random.pick([0, 0, 1, 2, 5, 40, 300]); run > 0; run--) text += random.pick(marks);
    }
    assert(textBytes(text) >= bytesOf(text), JSON.stringify(text));
  }
});

test('a mark that comes late in a run, and takes the letter from the mark that has it, is counted', () => {
  for (let run = 0; run < 400; run++) {
    const text = `\u00e9${'\u0301'.repeat(run)}\u0323`;
    assert(textBytes(text) >= bytesOf(text), `after ${run}`);
  }
});

test('only marks, and the halfwidth signs for voice, are put in order with what stands before them', () => {
  // What begins a chunk may not become anything that is sorted in between the marks of the chunk before.
  const sorted = (text: string) => `a\u0345${text}`.normalize('NFKD') !== `a\u0345${text.normalize('NFKD')}`;
  for (const character of all) if (sorted(character)) assert.match(character, /[\p{M}\uff9e\uff9f]/u);
});

test('honest text is counted at its normal form, not above it', () => {
  for (const text of ['Zażółć gęślą jaźń. ', 'नमस्ते दुनिया, यह एक वाक्य है। ', 'שָׁלוֹם עֲלֵיכֶם ', 'ｶﾞｷﾞｸﾞｹﾞｺﾞ'].map((it) =>
    it.repeat(300),
  ))
    assert.equal(textBytes(text), bytesOf(text));
});

for (const [what, run] of [
  ['marks out of order', '\u0315\u0300'],
  ['marks in reverse order', '\u0345\u0301\u0323\u0334'],
  ['letters that become eighteen', '\ufdfa'],
  ['Hangul in parts', '\u1112\u1161\u11ab'],
] as const)
  test(`${what} take a time that grows with their length, and not much more of it than other text`, () => {
    const count = (units: number) => {
      const text = `a${run.repeat(units / run.length)}`;
      return () => textBytes(text);
    };
    assertLinear(what, 1_000_000, count);
    const text = 'ä'.repeat(200_000);
    assertWithin(what, 200, count(200_000), () => textBytes(text));
  });
