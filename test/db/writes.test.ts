import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { pathToFileURL } from 'node:url';

const ROOT = join(import.meta.dirname, '../..');
const urlOf = (file: string) => pathToFileURL(join(ROOT, file)).href;

/** The names of all writes that the source defines. Each kind of paid request has two. */
const names = globSync('src/**/*.ts', { cwd: ROOT }).flatMap((file) =>
  [...readFileSync(join(ROOT, file), 'utf8').matchAll(/= define(Paid)?Writes?(?:<\w+>)?\(\s*'([\w.]+)'/g)].flatMap(
    ([, isPaid, name]) => (isPaid ? [`${name}.hold`, `${name}.settle`] : [name as string]),
  ),
);

test('the thread that writes knows every write by its name', () => {
  assert(names.length > 60 && names.includes('account.open') && names.includes('chat.hold'), 'the names are found');
  assert.equal(new Set(names).size, names.length);
  // In a process of its own: in this one, other tests have loaded what defines writes.
  const program = `
    import ${JSON.stringify(urlOf('src/main/writer-thread.ts'))};
    import { writeOf } from ${JSON.stringify(urlOf('src/db/write.ts'))};
    for (const name of ${JSON.stringify(names)}) {
      try { writeOf(name); } catch ({ message }) { console.log(message); }
    }`;
  const loading = urlOf('test/helper/loading.mjs');
  const unknown = execFileSync(process.execPath, [`--import=${loading}`, '--input-type=module'], { input: program });
  assert.equal(unknown.toString(), '', 'add their modules to src/main/writer-thread.ts');
});
