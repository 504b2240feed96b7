import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { LARGE_BYTES } from '../src/router/apart.ts';
import { cpuOf, isInProportion, threadMilliseconds } from './helper/cpu.ts';
import { length } from './helper/random.ts';

// One thread serves all requests, and an expression may take the square of its input's length, or worse. So each expression of
// the program is tried on inputs made from itself, in the soak up to the length that the main thread reads at once: it must take
// little time for that, or be listed below with the longest input that it may get. The run prints each with that length and its
// time.

/** Expressions that take more, each with the length of its longest input, in characters, and the reason why that is no longer. */
const BOUNDED: [name: string, longest: number, why: string][] = [
  ['src/base/money.ts /0+$/', 64, 'digits of an amount, which has at most 18 behind its point'],
  [String.raw`src/ui/parts.ts /\B(?=(\d{3})+$)/g`, 64, 'digits of an amount'],
  [String.raw`src/compute/engines/vast/settings.ts /\/+$/`, 500, 'the longest address that the setting takes'],
  [String.raw`src/compute/engines/slurm/submit.ts / to start at (\d+) .* in partition (\S+)/`, 4096, 'is cut before'],
  [
    'src/compute/engines/container/network.ts /fully subnetted|non-overlapping|no free.*subnet/i',
    4096,
    'what an engine says is cut',
  ],
  [`src/compute/engines/lxd/check.ts /ENOENT.*open|, open '/`, 1024, 'what LXD says is cut to 500'],
  [
    'src/compute/engines/kubernetes/create.ts /exceeded quota|is forbidden: .*quota/i',
    1024,
    'what the API says is cut to 500',
  ],
];

/** Other expressions that take more, and get no input from outside. */
const OWN: [name: string, why: string][] = [
  [String.raw`cli/completion.ts /[<[](.+?)[\]>]/`, 'the options of our own commands'],
  [String.raw`src/router/discover.ts /\/+$/`, 'addresses that the operator gives to `purser init`'],
  ['src/config/config.ts / but received .*$/', 'a message about a setting of the operator'],
  ['src/compute/engines/container/connection.ts /; if the root CA is installed locally.*$/', 'an error of Node itself'],
  [String.raw`src/config/router.ts /\/+$/`, 'a setting of the operator'],
  [String.raw`src/compute/engines/kubernetes/credentials.ts /\/+$/`, 'the cluster in the operator’s kubeconfig'],
  [String.raw`src/net/listen.ts /^(0\.0\.0\.0|[0:]*::[0:]*)$/`, 'a setting of the operator'],
  [String.raw`src/doctor/machine.ts /(\d+)\.(\d+)(?:\.(\d+))?/`, 'versions of the machine’s own programs'],
];

/** The number of expressions that each file assembles at run time: they begin with a fixed text or token, or repeat one class only. */
const MADE: Record<string, number> = {
  'cli/terminal.ts': 1,
  'src/compute/engines/container/address.ts': 2,
  'src/compute/engines/slurm/step.ts': 1,
  'src/compute/guest-usage.ts': 1, // Its input is bounded: a line for each GPU.
  'src/config/variables.ts': 1,
  'src/http/page.ts': 1,
  'src/http/port-proxy.ts': 2,
  'src/net/listen.ts': 1,
  'src/operator/find.ts': 1,
  'src/recovery/scheduled.ts': 1,
  'src/base/ssh-key.ts': 1,
  'src/ssh/sftp-respond.ts': 1,
  'src/transfer/check.ts': 1,
};

const LONGEST = length(16 * 1024, LARGE_BYTES);
/** Short ones first: an expression that takes more than the square would not end on a long one. */
const LENGTHS = [24, 256, 2048, 16 * 1024];
/**
 * Only one in this many of the longest inputs is tried, beside the worst of the shorter ones: growth as the square shows with
 * many inputs.
 */
const LONG_INPUTS_EACH = 16;
/**
 * In proportion, the longest input takes some milliseconds of processor time; as its square, thousands. An expression that
 * takes more than this, for example on a busy machine, is compared with itself at an eighth of the length.
 */
const MILLISECONDS_MAX = 50;

/** Matches comments, strings and templates; then an expression, where a value may begin, or one that is assembled. */
const TOKENS =
  /\/\*[\s\S]*?\*\/|\/\/[^\n]*|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\[\s\S])*`|(?<=(?:^|[=(,[!&|?:;{}>+\n]|\breturn|=>)\s*)\/(?![*/])(?:[^/\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+\/[dgimsuvy]*|\bRegExp\(/g;

const sources = globSync('{src,cli}/**/*.ts').map((file) => [file, readFileSync(file, 'utf8')] as const);
const tokens = sources.flatMap(([file, source]) => [...source.matchAll(TOKENS)].map(([text]) => ({ file, text })));

/** Returns the code in `${}` of a template, which may contain expressions as well. */
const inTemplate = (text: string) => [...text.matchAll(/\$\{([^`]*?)\}/g)].map(([, code]) => `(${code}`);
const literals = tokens
  .flatMap(({ file, text }) =>
    text.startsWith('`')
      ? inTemplate(text).flatMap((code) => [...code.matchAll(TOKENS)].map(([it]) => ({ file, text: it })))
      : [{ file, text }],
  )
  .filter(({ text }) => /^\/[^*/]/.test(text));

function expressionOf(text: string): RegExp | undefined {
  const end = text.lastIndexOf('/');
  try {
    return new RegExp(text.slice(1, end), text.slice(end + 1));
  } catch {
    return undefined; // A path in a script, not an expression.
  }
}

/** Returns inputs that come close to a match again and again, from the characters and words of the expression. */
function inputsFor({ source }: RegExp): ((length: number) => string)[] {
  const plain = source.replace(/\\[pP]\{[^}]*\}/g, 'é').replace(/\\u[\da-f]{4}/gi, (it) => JSON.parse(`"${it}"`));
  const words = plain
    .replace(/\\([dws])/gi, (_, it) => ({ d: '0', w: 'a', s: ' ' })[String(it).toLowerCase()] ?? '')
    .replace(/\\[nrt]/g, (it) => JSON.parse(`"${it}"`))
    .replace(/\\(.)/gs, '$1')
    .replace(/\(\?(?:[:=!]|<[=!])/g, '(')
    .split(/[()|?*+^$[\]{}]+/)
    .filter(Boolean);
  const characters = [...new Set([...words.join('').slice(0, 40), ...' a0_.-/:\n\t"é!A=\\'])].slice(0, 40);
  const whole = words.join('');
  const runs = [...new Set([...characters, ...words, whole, ...words.map((it, i) => it + (words[i + 1] ?? ''))])];
  const before = [...new Set(['', whole, ...words.slice(0, 3)])];
  const after = ['', '!\n!'];
  return before.flatMap((first) =>
    runs.flatMap((run) =>
      after.map(
        (last) => (length: number) =>
          (first + run.repeat(Math.ceil(length / (run.length || 1)))).slice(0, length) + last,
      ),
    ),
  );
}

function tried(expression: RegExp, input: string): number {
  const before = threadMilliseconds();
  expression.lastIndex = 0;
  if (expression.global) input.replace(expression, '');
  else expression.test(input);
  return threadMilliseconds() - before;
}

/** Returns the input on which it takes the longest, with its length: `longest`, or one whose time is out of proportion. */
function worstOf(
  expression: RegExp,
  longest: number,
): { length: number; input: string; cost: number; isFault: boolean } {
  const inputs = inputsFor(expression);
  let worst = { cost: 0, length: 0, input: '', make: inputs[0] as (length: number) => string, isFault: false };
  for (const length of [...LENGTHS.filter((it) => it < longest), longest]) {
    const tries = length > 16 * 1024 ? [worst.make, ...inputs.filter((_, i) => i % LONG_INPUTS_EACH === 0)] : inputs;
    worst = { ...worst, cost: 0, length };
    for (const make of tries) {
      const input = make(length);
      let cost = tried(expression, input);
      for (let i = 0; i < 3 && cost > MILLISECONDS_MAX; i++) cost = Math.min(cost, tried(expression, input));
      if (cost >= worst.cost) worst = { cost, length, input: input.slice(0, 60), make, isFault: false };
      if (cost <= MILLISECONDS_MAX) continue;
      const short = make(Math.ceil(length / 8));
      if (
        !isInProportion(
          cpuOf(() => tried(expression, short)),
          cost,
        )
      )
        return { ...worst, isFault: true };
    }
  }
  return worst;
}

test('every expression takes time in proportion to its input, or sees short ones only', (t) => {
  assert(literals.length > 300, `${literals.length} expressions are found`);
  const faults: string[] = [];
  const seen = new Set<string>();
  for (const { file, text } of literals) {
    const expression = expressionOf(text);
    const name = `${file} ${text}`;
    if (!expression || seen.has(name)) continue;
    seen.add(name);
    if (OWN.some(([own]) => own === name)) continue;
    const longest = BOUNDED.find(([bounded]) => bounded === name)?.[1] ?? LONGEST;
    const { cost, length: size, input, isFault } = worstOf(expression, longest);
    const row = `${name}: ${cost.toFixed(0)} ms for ${size} characters of ${JSON.stringify(input)}`;
    t.diagnostic(row);
    if (isFault) faults.push(row);
  }
  assert.deepEqual(faults, []);
  const gone = [...BOUNDED, ...OWN].filter(([name]) => !seen.has(name));
  assert.deepEqual(gone, [], 'all that is listed is there');
});

test('an expression that is put together at run time is listed', () => {
  const counts: Record<string, number> = {};
  for (const { file, text } of tokens) if (text === 'RegExp(') counts[file] = (counts[file] ?? 0) + 1;
  assert.deepEqual(counts, MADE);
});
