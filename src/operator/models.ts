import { installationOf } from '../ledger/installation.ts';
import { modelRecord } from '../wire/models.ts';
import { command, NOTHING } from './command.ts';

export const models = {
  'models.list': command(NOTHING, (app) => {
    const { createdAt } = installationOf(app.ledger.read);
    return {
      object: 'list' as const,
      data: app.catalogue.list.map((model) => ({
        ...modelRecord(model, createdAt),
        kind: model.kind,
        default_output_tokens: model.defaultOutputTokens,
        upstreams: model.routes.map(({ upstream }) => upstream),
        /** The routes to the model. `bound_factor` is above 1 where token counts above the bound have raised it. */
        routes: model.routes.map(({ upstream, upstreamModel, contextLength, promptOverheadTokens, learned }) => ({
          upstream,
          upstream_model: upstreamModel,
          context_length: Math.max(contextLength, learned.contextTokens),
          prompt_overhead_tokens: promptOverheadTokens,
          bound_factor: learned.permille / 1000,
        })),
      })),
    };
  }),
};
