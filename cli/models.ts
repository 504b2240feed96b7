import type { Command } from 'commander';
import { systemTime } from '../src/base/clock.ts';
import { askAndPrint, example, listOptions, readContext, showTable } from './context.ts';
import { report } from './findings.ts';
import { importCommand } from './models-import.ts';
import { show } from './report.ts';
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
  listOptions(group.command('list'))
    .description('list the models that have a price, with their limits; USD per million tokens and per request')
    .addHelpText('after', example('purser models list'))
    .action((_, command: Command) =>
      askAndPrint(command, 'models.list', {}, ({ data }, view) =>
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
          COLUMNS,
          view,
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
      const { examineModels } = await import('../src/doctor/models.ts');
      const now = Math.floor(systemTime.wall() / 1000);
      const findings = await whileWaiting('asking the model servers', examineModels(config, now));
      if (findings.length || globals.json) report(findings, globals);
      else show('There is no model to check.');
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
