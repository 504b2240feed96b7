// Scenarios of E2B's code interpreter, whose SDK is unmodified.
import assert from 'node:assert/strict';
import { Sandbox } from '@e2b/code-interpreter';
import { play } from './played.mjs';

await play({
  async 'code runs at once, and what it defines stays'() {
    const sandbox = await Sandbox.create();
    const first = await sandbox.runCode('x = 20; print("out"); import sys; print("err", file=sys.stderr)');
    assert.deepEqual([first.error, first.logs], [undefined, { stdout: ['out\n'], stderr: ['err\n'] }]);
    const second = await sandbox.runCode('x * 2 + 2');
    assert.deepEqual([second.text, second.executionCount], ['42', 2]);
    assert.equal((await sandbox.runCode('"a string"')).text, 'a string');
  },
  async 'an error has its name, value and traceback, and is not the end'() {
    const sandbox = await Sandbox.create();
    const { error } = await sandbox.runCode('x = 1\nx / 0');
    assert.deepEqual([error.name, error.value], ['ZeroDivisionError', 'division by zero']);
    assert.match(error.traceback, /ZeroDivisionError/);
    assert.equal((await sandbox.runCode('x')).text, '1');
    const died = await sandbox.runCode('import os; os._exit(3)');
    assert.equal(died.error.name, 'KernelEnded');
    assert.equal((await sandbox.runCode('1 + 1')).text, '2');
  },
  async 'what is displayed keeps its formats'() {
    const sandbox = await Sandbox.create();
    const { results } = await sandbox.runCode(
      'from IPython.display import HTML, Image, display\ndisplay(HTML("<b>x</b>"))\nImage(data=b"\\x89PNG", format="png")',
    );
    assert.deepEqual(
      results.map((it) => [it.isMainResult, it.formats()]),
      [
        [false, ['html']],
        [true, ['png']],
      ],
    );
    assert.equal(results[0].html, '<b>x</b>');
    assert.equal(results[1].png.trim(), Buffer.from('\x89PNG', 'latin1').toString('base64'));
  },
  async 'output comes while the code runs'() {
    const sandbox = await Sandbox.create();
    const code =
      'import os, time\nprint("ready", flush=True)\nwhile not os.path.exists("/tmp/go"): time.sleep(0.01)\n"gone"';
    const onStdout = ({ line }) => line === 'ready\n' && sandbox.files.write('/tmp/go', '');
    assert.equal((await sandbox.runCode(code, { onStdout })).text, 'gone');
  },
  async 'contexts have their own variables and directories'() {
    const sandbox = await Sandbox.create();
    await sandbox.runCode('x = 1');
    const context = await sandbox.createCodeContext({ cwd: '/tmp', language: 'python' });
    assert.deepEqual([context.language, context.cwd], ['python', '/tmp']);
    assert.equal((await sandbox.runCode('import os; x = 2; os.getcwd()', { context })).text, '/tmp');
    assert.equal((await sandbox.runCode('x')).text, '1');
    assert.equal((await sandbox.listCodeContexts()).length, 2);
    await sandbox.restartCodeContext(context);
    assert.equal((await sandbox.runCode('x', { context })).error.name, 'NameError');
    await sandbox.removeCodeContext(context);
    await assert.rejects(sandbox.runCode('x', { context }), { name: 'NotFoundError' });
    await assert.rejects(sandbox.createCodeContext({ language: 'r' }), /400/);
  },
  async 'variables of the sandbox, and of one run'() {
    const sandbox = await Sandbox.create({ envs: { HOUSE: 'here' } });
    const code = 'import os; [os.environ.get(it) for it in ("HOUSE", "OWN")]';
    assert.equal((await sandbox.runCode(code, { envs: { OWN: 'mine', HOUSE: 'there' } })).text, "['there', 'mine']");
    assert.equal((await sandbox.runCode(code)).text, "['here', None]");
  },
  async 'code that takes too long is interrupted'() {
    const sandbox = await Sandbox.create();
    await sandbox.runCode('x = 5');
    await assert.rejects(sandbox.runCode('while True: pass', { timeoutMs: 500 }), { name: 'TimeoutError' });
    assert.equal((await sandbox.runCode('x')).text, '5');
  },
  async 'a context that is restarted gives up what it runs'() {
    const sandbox = await Sandbox.create();
    const context = await sandbox.createCodeContext();
    const told = Promise.withResolvers();
    const running = sandbox.runCode('print("on", flush=True)\nwhile True: pass', { context, onStdout: told.resolve });
    await told.promise;
    await sandbox.restartCodeContext(context);
    assert.equal((await running).error.name, 'KernelEnded');
    assert.equal((await sandbox.runCode('1', { context })).text, '1');
  },
});
