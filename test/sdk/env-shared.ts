import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { openSandbox, run } from './examples.ts';

/** Prints the model that `env` names: of all models, of one for embeddings, and of that and one for chats. */
const PROGRAMS = {
  js: `import { wallet } from './purser.mjs';
const w = wallet();
for (const models of [undefined, ['embed'], ['embed', 'flat']]) console.log((await w.env({ models })).OPENAI_MODEL);`,
  python: `from purser import wallet
w = wallet()
for models in [None, ["embed"], ["embed", "flat"]]:
    print(w.env(models=models).get("OPENAI_MODEL", "undefined"))`,
};

/** Checks that `env` names the first model for chats. */
export async function assertNamesChats(t: TestContext, language: keyof typeof PROGRAMS, program: string) {
  const { purser, directory, env } = await openSandbox(t, (settings) => {
    const { models } = settings.router;
    const embed = {
      id: 'embed',
      kind: 'embeddings',
      upstream: 'local',
      context_length: 8192,
      pricing: { prompt: '0.0000001' },
    };
    return { ...settings, router: { ...settings.router, models: [embed, ...models] } };
  });
  const first = purser.app.catalogue.list.find(({ kind }) => kind === 'chat')?.id;
  assert.equal(purser.app.catalogue.list[0]?.id, 'embed');
  const args = language === 'js' ? ['--input-type=module', '-e'] : ['-c'];
  const { stdout } = await run(program, [...args, PROGRAMS[language]], { cwd: directory, env });
  assert.equal(stdout, `${first}\nundefined\nflat\n`);
}
