import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { createLog } from '../../src/base/log.ts';
import { runDemo } from '../../src/demo/demo.ts';
import { length } from '../helper/random.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { leftOf } from './left.ts';

/** The demo in this process, in a directory of its own. `heard` is told every line as it is printed. */
async function run(t: TestContext, signal: AbortSignal, heard: (line: string) => void) {
  const directory = temporaryDirectory(t, '/tmp'); // Not in /dev/shm, as in a fast run: uploads into /dev are refused.
  const before = process.env.TMPDIR;
  process.env.TMPDIR = directory;
  t.after(() => {
    process.env.TMPDIR = before;
    if (before === undefined) delete process.env.TMPDIR;
  });
  const log: string[] = [];
  const printed: string[] = [];
  const wrong = await runDemo({
    log: createLog('warn', [], (line) => log.push(line)),
    print(line) {
      printed.push(line);
      heard(line);
    },
    signal,
    keepServing: false,
    fatal: (error) => {
      throw error;
    },
  });
  return { wrong, directory, log, printed };
}

/** A word of each step after which something has to be taken away again. */
const MOMENTS = [
  'Plain ssh',
  'leaves that running',
  'Purser is serving',
  'It rents ten minutes',
  'standard output',
  'SHA-256',
  'refused with',
  'seconds its deadline moved',
  'It stops both',
  'It goes on calling',
  'The wallet is closed',
];
for (const moment of MOMENTS.slice(0, length(2, MOMENTS.length)))
  test(`interrupted at "${moment}", the demo leaves neither a process nor a file`, async (t) => {
    const stop = new AbortController();
    const { wrong, directory, log, printed } = await run(t, stop.signal, (line) => {
      if (line.includes(moment)) stop.abort();
    });
    assert.equal(wrong, undefined);
    assert.equal(printed.at(-1), '\nInterrupted before the end.');
    assert.deepEqual(leftOf(directory), []);
    assert.deepEqual(log, []);
  });

test('a figure that is wrong is marked and counted, and one that is missing has its reason', async (t) => {
  const { fetch } = globalThis;
  t.mock.method(globalThis, 'fetch', async (url: string, options: RequestInit) => {
    if (url.endsWith('/v1/compute/upload'))
      return Response.json({ error: { code: 'provider_unavailable', message: 'It is away.' } }, { status: 503 });
    const response = await fetch(url, options);
    if (!url.endsWith('/v1/compute/extend') || !response.ok) return response;
    return Response.json({ ...((await response.json()) as object), charged_usd: '0.06' });
  });
  const { wrong, printed } = await run(t, new AbortController().signal, () => {});
  assert.deepEqual(
    printed.filter((it) => it.includes('✗')).map((it) => it.replace(/[0-9a-f]{64}/, 'SUM')),
    [
      '  ✗ SHA-256 of the file: undefined (arithmetic says SUM): 503 provider_unavailable: It is away.',
      '  ✗ it reads the same: false (arithmetic says true)',
      '  ✗ charged USD in all: 0.06 (arithmetic says 0.09)',
    ],
  );
  assert.deepEqual([wrong, printed.at(-1)], [3, '\n3 figures are wrong.']);
});
