// Scenarios of the client of OpenAI's Agents SDK for E2B, which is unmodified.
import assert from 'node:assert/strict';
import { run, setTracingDisabled } from '@openai/agents';
import { Manifest, SandboxAgent } from '@openai/agents/sandbox';
import { assistantMessage, functionCall, modelResponder, ScriptedModel } from '@openai/agents/testing';
import { E2BSandboxClient } from '@openai/agents-extensions/sandbox/e2b';
import { Sandbox } from 'e2b';
import { play } from './played.mjs';

setTracingDisabled(true); // It would go to OpenAI.
await play({
  async 'OpenAI’s client opens a sandbox, runs a command, writes and reads a file, and ends'() {
    const client = new E2BSandboxClient({ template: 'base', timeout: 300, env: { HOUSE: 'here' } });
    const entries = { 'given.txt': { type: 'file', content: 'from the manifest' } };
    const session = await client.create(new Manifest({ entries }));
    assert.equal(await session.running(), true);
    const said = await session.execCommand({ cmd: 'cat given.txt; echo; echo "$HOUSE"; pwd' });
    assert.match(said, /from the manifest\nhere\n\/workspace\n/);
    await session.materializeEntry({ path: 'own/b.txt', entry: { type: 'file', content: 'written' } });
    assert.equal(Buffer.from(await session.readFile({ path: 'own/b.txt' })).toString(), 'written');
    assert.equal(await session.pathExists('own/none'), false);
    assert.equal((await Sandbox.list().nextItems()).length, 1);
    await session.close();
    assert.deepEqual(await Sandbox.list().nextItems(), []);
  },
  async 'its terminals are E2B’s'() {
    const session = await new E2BSandboxClient({ template: 'base' }).create(new Manifest());
    assert.equal(session.supportsPty(), true);
    const begun = await session.execCommand({ cmd: 'read line; echo "got $line"', tty: true, yieldTimeMs: 300 });
    const [, id] = /session ID (\d+)/i.exec(begun) ?? assert.fail(begun);
    const said = await session.writeStdin({ sessionId: Number(id), chars: 'it\n', yieldTimeMs: 10_000 });
    assert.match(said, /got it/);
    await session.close();
  },
  async 'an agent works in a sandbox that is its run’s'() {
    const model = new ScriptedModel([
      modelResponder(() => [functionCall('exec_command', { cmd: 'echo made >a; cat a' }, { callId: 'call_1' })]),
      modelResponder(({ request }) => {
        assert.match(JSON.stringify(request.input), /made/);
        return [assistantMessage('done')];
      }),
    ]);
    const sandbox = { client: new E2BSandboxClient({ template: 'base', timeout: 600 }) };
    const agent = new SandboxAgent({ name: 'worker', instructions: 'Work.', model });
    const { finalOutput } = await run(agent, 'Make a file.', { sandbox });
    assert.equal(finalOutput, 'done');
    assert.deepEqual(await Sandbox.list().nextItems(), []);
  },
});
