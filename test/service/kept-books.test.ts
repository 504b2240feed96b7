import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { appendFileSync, chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { keptBooks } from '../../src/service/own-service.ts';
import { temporaryDirectory } from '../ledger/books.ts';

const COMMANDS = ['mv', 'rm', 'rmdir', 'sync'];
const BOOKS = ['purser.db', 'purser.db-wal', 'ledger.head', 'ledger.tip', 'ledger.clock'];
const head = (seq: number) => `${seq} ${'0'.repeat(64)} 1 0\n`;

/** Opens a data directory of a stopped service, whose scripts are killed before their command of this number. */
function openStopped(t: TestContext) {
  const directory = temporaryDirectory(t);
  const [data, bin] = [join(directory, 'data'), join(directory, 'bin')];
  for (const it of [data, bin, join(data, 'upgrade')]) mkdirSync(it);
  for (const it of COMMANDS) {
    const text = `#!/bin/sh\nif [ "$(wc -l < ${bin}/done)" -eq "$KILLED_BEFORE" ]; then kill -KILL $PPID; exit; fi\necho >> ${bin}/done\nPATH=/usr/bin:/bin exec ${it} "$@"\n`;
    writeFileSync(join(bin, it), text);
    chmodSync(join(bin, it), 0o755);
  }
  let killedBefore = -1;
  const run = (_: number, program: string, ...args: string[]) => {
    writeFileSync(join(bin, 'done'), '');
    const env = { PATH: `${bin}:/usr/bin:/bin`, KILLED_BEFORE: String(killedBefore) };
    const { status, stdout, stderr } = spawnSync(program, args, { cwd: data, env, encoding: 'utf8' });
    return { status, stdout, stderr };
  };
  const at = (name: string) => join(data, name);
  const books = keptBooks({
    data,
    environment: {},
    run,
    // The books can be read by the former version, and tell of themselves what the files beside them do.
    runAsService: (_, __, ...args) => ({ status: args.includes('verify') ? 0 : 1, stdout: '', stderr: '' }),
    shell: (script) => run(0, 'sh', '-euc', script, 'sh', ...BOOKS).stdout,
  });
  const writeMarks = (seq: number) => {
    for (const it of ['ledger.head', 'ledger.tip']) writeFileSync(at(it), head(seq));
  };
  writeFileSync(at('purser.db'), 'entry 1\n');
  writeFileSync(at('ledger.clock'), '{}\n');
  writeMarks(1);
  return {
    books,
    isThere: (name: string) => existsSync(at(name)),
    database: () => readFileSync(at('purser.db'), 'utf8'),
    /** Serves for a while, and books an entry. */
    serve(seq: number) {
      appendFileSync(at('purser.db'), `entry ${seq}\n`);
      writeMarks(seq);
    },
    /** Goes back as an upgrade does, and is killed before a command of the script that puts the books back. */
    goBack(before = -1) {
      books.finishReturn();
      const keeps = books.changeSince() !== 'none' && books.canRead('former');
      killedBefore = before;
      if (!keeps) books.putBooksBack();
      killedBefore = -1;
    },
  };
}

for (const [before, what] of ['mv', 'rm', 'mv', 'mv', 'mv', 'mv', 'sync', 'rmdir'].entries())
  test(`books that served after the way back was killed before its ${what} (${before}) keep what they booked`, (t) => {
    const stopped = openStopped(t);
    stopped.books.keepBooks();
    stopped.goBack(before);
    stopped.serve(2); // As after a reboot.
    stopped.goBack();
    assert.equal(stopped.database(), 'entry 1\nentry 2\n');
    assert.equal(stopped.isThere('upgrade/return'), false);
  });
