import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { closeSync, constants, openSync, readSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { createLineBuffer, createLog, type LogFormat, logConsole } from '../../src/base/log.ts';
import { temporaryDirectory } from '../ledger/books.ts';

/** A pipe whose reader reads when the test tells it to, and a buffer before it. */
function openPipe(t: TestContext, format: LogFormat = 'json') {
  const path = join(temporaryDirectory(t), 'pipe');
  execFileSync('mkfifo', [path]);
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  const writer = openSync(path, constants.O_WRONLY | constants.O_NONBLOCK);
  const isOpen = { reader: true };
  const closeReader = () => {
    if (isOpen.reader) closeSync(reader);
    isOpen.reader = false;
  };
  t.after(() => {
    closeReader();
    closeSync(writer);
  });
  const bytes = Buffer.alloc(1024 * 1024);
  /** Returns the present content of the pipe. */
  const read = (): string => {
    try {
      return bytes.toString('utf8', 0, readSync(reader, bytes));
    } catch (error) {
      assert.equal((error as { code: string }).code, 'EAGAIN');
      return '';
    }
  };
  return { buffer: createLineBuffer(writer, format), read, closeReader };
}
const turn = () => new Promise((resolve) => setImmediate(resolve));
/** Returns a line of 230 bytes, for any number. */
const lineOf = (i: number) => `{"line":"${String(i).padStart(6, '0')}","text":"ümläut ${'x'.repeat(200)}"}\n`;

test('the lines of a turn are written at its end, in order', async (t) => {
  const { buffer, read } = openPipe(t);
  const lines = Array.from({ length: 10 }, (_, i) => lineOf(i));
  for (const line of lines) buffer.write(line);
  await turn();
  assert.equal(read(), lines.join(''));
  assert.equal(buffer.lostCount(), 0);
});

test('what the end of the process flushes is all that waits, without a turn of the loop', (t) => {
  const { buffer, read } = openPipe(t);
  buffer.write(lineOf(1));
  buffer.flush(1000);
  assert.equal(read(), lineOf(1));
});

test('a reader that stops loses only what is beyond the bound, and is told how much that was', async (t) => {
  const { buffer, read } = openPipe(t);
  const lines = Array.from({ length: 20_000 }, (_, i) => lineOf(i));
  for (const [i, line] of lines.entries()) {
    buffer.write(line);
    if (i % 100 === 0) await turn();
  }
  const lost = buffer.lostCount();
  assert(lost > 1000, `${lost} of ${lines.length} lost`);
  let text = '';
  for (let piece = ''; text === '' || piece !== ''; text += piece) {
    buffer.flush(0);
    piece = read();
  }
  const got = text.split('\n').slice(0, -1);
  assert.equal(got.length, lines.length - lost + 1);
  assert.deepEqual(
    got.slice(0, -1),
    lines.slice(0, lines.length - lost).map((line) => line.slice(0, -1)),
  );
  const { level, event, lines: count } = JSON.parse(got.at(-1) as string);
  assert.deepEqual([level, event, count], [40, 'log.lost', lost]);

  buffer.write(lineOf(7));
  buffer.flush(0);
  assert.equal(read(), lineOf(7), 'and goes on');
  assert.equal(buffer.lostCount(), lost);
});

test('a flush does not wait longer than it is told for a reader that stopped', (t) => {
  const { buffer } = openPipe(t);
  for (let i = 0; i < 2000; i++) buffer.write(lineOf(i));
  const from = performance.now();
  buffer.flush(100);
  assert(performance.now() - from >= 100, 'nobody reads: that it returns is what it was told');
});

test('lines that nobody reads any more are lost one by one, and break nothing', async (t) => {
  const { buffer, closeReader } = openPipe(t);
  closeReader();
  for (let i = 1; i <= 3; i++) {
    buffer.write(lineOf(i));
    await turn();
    assert.equal(buffer.lostCount(), i);
  }
});

test('every line that was logged is out when the process has ended, however it ended', () => {
  const log = new URL('../../src/base/log.ts', import.meta.url);
  const serve = new URL('../../cli/serve.ts', import.meta.url);
  const failCommit = `(await import('${serve}')).stopAtOnce(new Error('a commit failed'))`;
  const ends = { 'its work': '', 'a failed commit': failCommit, 'an error': `throw new Error('a mistake')` };
  for (const [what, end] of Object.entries(ends)) {
    const script = `
      const { createLog } = await import('${log}');
      const log = createLog('info');
      for (let i = 0; i < 4000; i++) log.info({ i }, '${'x'.repeat(100)}');
      ${end}`;
    const { stderr } = spawnSync(process.execPath, ['--no-warnings', '--input-type=module', '--eval', script]);
    const lines = String(stderr).match(/^\{"level":30.*\}$/gm) ?? [];
    assert.equal(lines.length, 4000, what);
    assert.equal(JSON.parse(lines.at(-1) as string).i, 3999, what);
  }
});

test('what a library prints is a line of the log, without secrets', () => {
  const lines: string[] = [];
  const log = createLog('info', ['secret-of-upstream'], (line) => void lines.push(line));
  const printer = { ...console };
  logConsole(log, printer);
  printer.error(new Error('the key is secret-of-upstream\nand a token svc_agent_0123456789abcdef'));
  printer.info('%s of %d', 'one', 2);
  const [first = '', second = ''] = lines;
  assert.equal(lines.length, 2);
  assert(!/secret-of-upstream|0123456789abcdef/.test(first), first);
  assert.equal(JSON.parse(first).event, 'console');
  assert.equal(JSON.parse(second).said, 'one of 2');
});

test('as text a line says when, how bad, which event and what happened; it hides and escapes as JSON does', () => {
  const lines: string[] = [];
  const secret = 'sk-a-key-0123456789';
  const log = createLog('debug', [secret], (text) => lines.push(text), 'text');
  log.info({ event: 'serving', listen: 'https://127.0.0.1:1', ready: true, none: null }, 'serving');
  log.warn(
    { event: 'tls.refused', reason: `a "b" ${secret}\u001b[31m\u202e\n2026-01-01 00:00:00Z forged`, list: [1, 'two'] },
    'no',
  );
  log.error({ token: `svc_agent_${'a'.repeat(40)}` }, `first\nsecond ${secret}`);
  log.debug({ event: 'bearer' }, 'Authorization: Bearer abc.def');
  const when = String.raw`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`;
  assert.match(
    lines[0] ?? '',
    new RegExp(`^${when} info  serving  listen=https://127\\.0\\.0\\.1:1  ready=true  none=null\n$`),
  );
  assert.equal(
    lines[1]?.slice(20),
    ` warn  tls.refused: no  reason="a \\"b\\" [redacted]\\u001b[31m\\u202e\\n2026-01-01 00:00:00Z forged"  list="[1,\\"two\\"]"\n`,
  );
  assert.equal(lines[2]?.slice(20), ' error first\n  second [redacted]  token=svc_agent_[redacted]\n');
  assert.equal(lines[3]?.slice(20), ' debug bearer: Authorization: Bearer [redacted]\n');
});

test('lost lines are reported in the format of the log', async (t) => {
  const { buffer, read } = openPipe(t, 'text');
  const line = `${'x'.repeat(1000)}\n`;
  for (let i = 0; i < 2000; i++) buffer.write(line);
  assert(buffer.lostCount() > 0);
  let text = '';
  while (!/lost: the reader/.test(text)) {
    await turn();
    text = text.slice(-2000) + read();
    buffer.flush(0);
  }
  assert.match(text, /Z warn {2}log\.lost: log lines were lost: the reader of stderr did not keep up {2}lines=\d+\n$/);
});
