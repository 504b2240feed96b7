import type { Command } from 'commander';
import { askAndPrint, example, readContext, showTable } from './context.ts';
import { mark } from './doctor.ts';
import { importCommand } from './models-import.ts';
import { print, show } from './report.ts';
import { whileWaiting } from './spinner.ts';
import { perMillion } from './table.ts';

const COLUMNS = [
  'id',
  'kind',
  'upstreams',
  'context_length',
  'max_output_tokens',
  'default_output_tokens',
  'prompt_usd/M',
  'completion_usd/M',
  'request_usd',
  'bound_overhead',
  'bound_factor',
];

/** Registers `models`: lists the models, checks them against their upstreams, and forgets their learned bounds. */
export function modelsCommands(program: Command): void {
  const group = program.command('models').description('the models on offer; check them against their upstreams');
  group
    .command('list')
    .description('list the models that have a price, with their limits; USD per million tokens and per request')
    .addHelpText('after', example('purser models list'))
    .action((_, command: Command) =>
      askAndPrint(command, 'models.list', {}, ({ data }) =>
        showTable(
          data.map(({ pricing, upstreams, routes, ...it }) => ({
            ...it,
            'prompt_usd/M': perMillion(pricing.prompt),
            'completion_usd/M': perMillion(pricing.completion),
            request_usd: pricing.request,
            upstreams: upstreams.join(', '),
            bound_overhead: routes.map((route) => route.bound_overhead_tokens).join(', '),
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
      const { config, globals } = await readContext(command);
      const [{ checkModels, statedModels }, { createCatalogue }, { openUpstream }, { readLearned }, { systemTime }] =
        await Promise.all([
          import('../src/router/check.ts'),
          import('../src/router/catalogue.ts'),
          import('../src/router/upstream.ts'),
          import('../src/doctor/learned.ts'),
          import('../src/base/clock.ts'),
        ]);
      const configs = new Map(config.router.upstreams.map((it) => [it.name, it]));
      const upstreams = new Map([...configs].map(([name, it]) => [name, openUpstream(it)]));
      const catalogue = createCatalogue(config);
      const now = Math.floor(systemTime.wall() / 1000);
      readLearned(config.dataDirectory, catalogue, now);
      const statedBy = async (name: string) => {
        const upstream = configs.get(name);
        return upstream ? statedModels(upstream) : new Map();
      };
      const checking = checkModels(catalogue, upstreams, statedBy, undefined, now);
      const checks = await whileWaiting('asking the model servers', checking);
      for (const upstream of upstreams.values()) await upstream.close();
      const unpriced = config.router.models.filter((it) => !it.pricing && !it.pricing_per_million);
      for (const { id } of unpriced)
        checks.push({ name: id, ok: false, detail: 'It has no price, so it is not offered. Give it pricing.' });
      const ok = checks.every((check) => check.ok);
      if (globals.json) print(JSON.stringify({ ok, checks }));
      else if (!checks.length) show('There is no model to check.');
      else for (const { name, ok, detail } of checks) show(`${mark(ok)} ${name}: ${detail}`);
      process.exitCode = ok ? 0 : 1;
    });
  group
    .command('forget')
    .description('forget what counts above the bound have taught of a model: its bound is that of the settings again')
    .argument('<id>', 'the model')
    .addHelpText('after', example('purser models forget qwen3-8b'))
    .action((id: string, _, command: Command) =>
      askAndPrint(command, 'models.forget', { id }, ({ forgotten }) => {
        if (!forgotten.length) return 'Nothing had been learned.';
        const described = forgotten.map(
          (it) =>
            `Forgotten of ${it.upstream_model} on ${it.upstream}: ${it.bound_overhead_tokens} tokens added, the factor ${it.bound_factor}.`,
        );
        return described.join('\n');
      }),
    );
  importCommand(group);
}
