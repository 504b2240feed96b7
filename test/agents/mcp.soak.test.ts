import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { AGENTS } from './agents.ts';
import { googleApi } from './google.ts';
import { hasAgent } from './installed.ts';
import { settingsOf } from './page.ts';
import { type Asked, runAgent } from './run.ts';
import { BUDGET_TASK, budgetModel, TASK } from './task.ts';

// The agents with the settings that docs/mcp.md prints, beside those of `purser wallet env`.

/** Runs an agent whose model asks for the wallet's tool, and checks that it was listed, was called, and told what is left. */
async function assertCalls(t: TestContext, asked: Asked): Promise<void> {
  const { said, exchanges } = await runAgent(t, { ...asked, model: budgetModel });
  const methods = exchanges
    .filter(({ path }) => path === '/v1/mcp')
    .map(({ body }) => /"method":"([^"]+)"/.exec(body)?.[1]);
  assert(methods.includes('tools/list') && methods.includes('tools/call'), `${methods}\n${said}`);
  assert.match(said, /The wallet has (0\.9\d*|1\.00) USD\./);
  // Claude Code sends all its tools once a reference to one, which its search returns, is refused.
  assert.deepEqual(
    exchanges.filter(({ status }) => status === 400).map(({ path, body }) => `${path} ${body.slice(-500)}`),
    [],
  );
}

const titleOf = (title: string) => `${title} is given the wallet's tools, and one of them tells it what is left`;

/**
 * It has no settings of ours: its models are Google's alone, of which one is made up here. Unless it is told a model,
 * it asks another one first how hard the task is.
 */
const GEMINI = {
  title: 'Gemini CLI',
  file: { path: '.gemini/settings.json', text: '{"security":{"auth":{"selectedType":"gemini-api-key"}}}' },
  script: `export GEMINI_API_KEY=none GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:7420/google GEMINI_CLI_TRUST_WORKSPACE=true
gemini --model gemini-2.5-pro`,
};

describe('the wallet as an MCP server', { concurrency: 2 }, () => {
  for (const { title, client, program, args, mcpArgs } of AGENTS)
    if (mcpArgs)
      test(titleOf(title), async (t) => {
        if (!hasAgent(t, program)) return;
        await assertCalls(t, {
          client,
          settings: settingsOf(title),
          args: [...args.map((it) => (it === TASK ? BUDGET_TASK : it)), ...mcpArgs],
        });
      });

  test(titleOf(GEMINI.title), async (t) => {
    if (!hasAgent(t, 'gemini')) return;
    const { files } = settingsOf(GEMINI.title);
    await assertCalls(t, {
      settings: { files: [...files, GEMINI.file], script: GEMINI.script },
      args: ['-p', BUDGET_TASK, '--yolo'],
      served: { prefix: '/google/', handle: googleApi(budgetModel) },
    });
  });
});
