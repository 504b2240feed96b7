// The lines of docs/sandboxes.md for the AI SDK, which is unmodified.
import assert from 'node:assert/strict';
import { generateText, stepCountIs, tool } from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import { Sandbox } from 'e2b';
import { z } from 'zod';
import { play } from './played.mjs';

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const call = (command) => ({
  content: [{ type: 'tool-call', toolCallId: 'call_1', toolName: 'bash', input: JSON.stringify({ command }) }],
  finishReason: { unified: 'tool-calls', raw: undefined },
  usage,
  warnings: [],
});
const answer = (text) => ({
  content: [{ type: 'text', text }],
  finishReason: { unified: 'stop', raw: undefined },
  usage,
  warnings: [],
});

await play({
  async 'a tool of the AI SDK runs commands in a sandbox'() {
    const steps = [call('echo made >a; cat a'), answer('done')];
    const model = new MockLanguageModelV4({ doGenerate: async () => steps.shift() });
    const sandbox = await Sandbox.create('base');
    const bash = tool({
      inputSchema: z.object({ command: z.string() }),
      execute: (it) => sandbox.commands.run(it.command),
    });
    const prompt = 'What is on this machine?';
    const { text } = await generateText({ model, tools: { bash }, stopWhen: stepCountIs(20), prompt });
    assert.equal(text, 'done');
    assert.match(JSON.stringify(model.doGenerateCalls[1].prompt), /made\\n/);
  },
});
