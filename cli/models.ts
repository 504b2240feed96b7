import type { Command } from 'commander';
import { askAndPrint, example, readContext, showTable } from './context.ts';
import { print } from './report.ts';

const COLUMNS = [
  'id',
  'kind',
  'upstreams',
  'context_length',
  'max_output_tokens',
  'default_output_tokens',
  'prompt',
  'completion',
  'request',
  'bound_factor',
];

export function modelsCommands(program: Command): void {
  const group = program.command('models').description('the models on offer; check them against their upstreams');
  group
    .command('list')
    .description('list the models that have a price, with their limits; USD per token and per request')
    .addHelpText('after', example('purser models list'))
    .action((_, command: Command) =>
      askAndPrint(command, 'models.list', {}, ({ data }) =>
        showTable(
          data.map(({ pricing, upstreams, routes, ...it }) => ({
            ...it,
            ...pricing,
            upstreams: upstreams.join(', '),
            bound_factor: routes.map((route) => route.bound_factor).join(', '),
          })),
          ...COLUMNS,
        ),
      ),
    );
  group
    .command('check')
    .description(
      'send a request of one token to each model, plain and streamed; compare counts, price and context length',
    )
    .addHelpText('after', example('purser models check'))
    .action(async (_, command: Command) => {
      const { config, secrets, globals } = await readContext(command);
      const [{ checkModels, statedModels }, { createCatalogue }, { openUpstream }, { readLearned }] = await Promise.all(
        [
          import('../src/router/check.ts'),
          import('../src/router/catalogue.ts'),
          import('../src/router/upstream.ts'),
          import('../src/doctor/learned.ts'),
        ],
      );
      const keyOf = (name: string) => secrets.upstreamKeys.get(name);
      const configs = new Map(config.router.upstreams.map((it) => [it.name, it]));
      const upstreams = new Map([...configs].map(([name, it]) => [name, openUpstream(it, keyOf(name))]));
      const catalogue = createCatalogue(config);
      readLearned(config.dataDirectory, catalogue);
      const checks = await checkModels(catalogue, upstreams, async (name) => {
        const upstream = configs.get(name);
        return upstream ? statedModels(upstream, keyOf(name)) : new Map();
      });
      for (const upstream of upstreams.values()) await upstream.close();
      const unpriced = config.router.models.filter((it) => !it.pricing && !it.pricing_per_million);
      for (const { id } of unpriced)
        checks.push({ name: id, ok: false, detail: 'It has no price, so it is not offered. Give it pricing.' });
      const ok = checks.every((check) => check.ok);
      if (globals.json) print(JSON.stringify({ ok, checks }));
      else for (const { name, ok, detail } of checks) print(`${ok ? 'ok  ' : 'BAD '} ${name}: ${detail}`);
      process.exitCode = ok ? 0 : 1;
    });
}
