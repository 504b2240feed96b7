import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { hasComponent } from '../helper/component.ts';
import { openLocalLease } from '../http/trees-shared.ts';
import { openBreaking } from './broken-shared.ts';

const SDK = fileURLToPath(new URL('../../sdk', import.meta.url));
const run = promisify(execFile);

/** How often each step is done; its answers break off that often, a step later each time. */
const COUNT = { delegate: 90, run: 130, stream: 130, fetch: 25 };
const STEP = { delegate: 10, run: 13, stream: 13, fetch: 270 };

type Step = keyof typeof COUNT;
/** The same four steps in both languages. Pauses between retries are left out. */
const PROGRAMS: Record<'python' | 'js', Record<Step, string>> = {
  python: Object.fromEntries(
    Object.entries({
      delegate: 'w.delegate("child", usd="0.01"); w.available',
      run: 'm.run("echo said; echo x >> count")',
      stream: 'm.run("echo said; echo x >> count", on_stdout=lambda _: None)',
      fetch:
        'm.fetch("tree", "tree"); m.fetch("file", "file"); assert open("tree/a").read() == open("file").read() == "a" * 300',
    }).map(([name, code]) => [
      name,
      `import os, sys
sys.path.insert(0, ${JSON.stringify(join(SDK, 'python'))})
import purser
purser.time.sleep = lambda _: None
w = purser.wallet()
m = purser.Machine(w._client, {"id": os.environ["MACHINE"], "status": "running", "expires_at": 0})
done = lost = 0
for _ in range(int(sys.argv[1])):
    try:
        said = ${name === 'run' || name === 'stream' ? code : `None; ${code}`}
        assert said is None or said == purser.Result(0, "said\\n", "", False, False), said
        done += 1
    except purser.ConnectionLost:
        lost += 1
print(done, lost)
`,
    ]),
  ) as Record<Step, string>,
  js: Object.fromEntries(
    Object.entries({
      delegate: 'await w.delegate("child", { usd: "0.01" }); await w.available;',
      run: 'check(await m.run("echo said; echo x >> count"));',
      stream: 'check(await m.run("echo said; echo x >> count", { onStdout() {} }));',
      fetch:
        'await m.fetch("tree", "tree"); await m.fetch("file", "file"); assert.deepEqual([readFileSync("tree/a", "utf8"), readFileSync("file", "utf8")], ["a".repeat(300), "a".repeat(300)]);',
    }).map(([name, code]) => [
      name,
      `import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import * as purser from ${JSON.stringify(join(SDK, 'javascript/purser.mjs'))};
globalThis.setTimeout = (then) => setImmediate(then);
const w = purser.wallet();
const m = { run: (...args) => machine.run(...args), fetch: (...args) => machine.fetch(...args) };
let machine;
for (; !machine; ) machine = await w.machine(process.env.MACHINE);
const check = (it) => assert.deepEqual(it, { exitCode: 0, stdout: 'said\\n', stderr: '', timedOut: false, truncated: false });
let [done, lost] = [0, 0];
for (let count = 0; count < Number(process.argv[2]); count++)
  try {
    ${code}
    done++;
  } catch (error) {
    if (!(error instanceof purser.ConnectionLost)) throw error;
    lost++;
  }
console.log(done, lost);
`,
    ]),
  ) as Record<Step, string>,
};

async function breakEach(t: TestContext, language: 'python' | 'js', program: string) {
  const { purser, token, id, sh } = await openLocalLease(t);
  await sh('mkdir tree; printf %0300d 0 | tr 0 a | tee tree/a > file');
  const directory = mkdtempSync(join(tmpdir(), 'purser-broken-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  for (const step of Object.keys(COUNT) as Step[]) {
    const { url, seen } = await openBreaking(t, purser.url, STEP[step]);
    const file = join(directory, language === 'js' ? 'step.mjs' : 'step.py');
    writeFileSync(file, PROGRAMS[language][step]);
    const env = { PATH: process.env.PATH, SVC_BROKER_URL: url, SVC_BROKER_TOKEN: token, MACHINE: id };
    const { stdout } = await run(program, [file, String(COUNT[step])], { cwd: directory, env });
    const [done = 0, lost = 0] = stdout.trim().split(' ').map(Number);
    assert.equal(done + lost, COUNT[step], step);
    assert.ok(
      STEP[step] * (seen.count / 2) > seen.length,
      `${step}: an answer of ${seen.length} bytes was broken to its end`,
    );
    if (step === 'run' || step === 'stream') {
      const count = Number(await sh('wc -l < count; rm count'));
      // A streamed command is killed where its client goes.
      const mayBe = step === 'run' ? count === COUNT.run : count >= done && count <= COUNT.stream;
      assert.ok(mayBe, `${step}: each command ran once, also those whose answer was lost, and not ${count} times`);
      assert.ok(lost > 10, `${step}: the answers that broke are told`);
    } else assert.equal(lost, 0, `${step}: repeated until it was whole`);
  }
  const { body } = await purser.ask('GET', '/v1/run/wallets', { token });
  assert.equal(body.wallets.length, COUNT.delegate, 'each child was made once');
  assert.equal((await purser.budget(token)).delegated_usd, (COUNT.delegate / 100).toFixed(2));
  assert.deepEqual(purser.problems(), []);
}

test('an answer that breaks off at any byte is never taken for another, in JavaScript', (t) =>
  breakEach(t, 'js', process.execPath));
test('an answer that breaks off at any byte is never taken for another, in Python', async (t) => {
  if (hasComponent(t, 'python3')) await breakEach(t, 'python', 'python3');
});
