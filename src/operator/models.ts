import * as v from 'valibot';
import { forgetBounds } from '../chat/learn.ts';
import { installationOf } from '../ledger/installation.ts';
import { fadedAt } from '../router/catalogue.ts';
import { modelRecord } from '../wire/models.ts';
import { command, Id, NOTHING } from './command.ts';

export const models = {
  'models.list': command(NOTHING, (app) => {
    const { createdAt } = installationOf(app.ledger.read);
    const now = app.clock.now();
    return {
      object: 'list' as const,
      data: app.catalogue.list.map((model) => ({
        ...modelRecord(model, createdAt),
        kind: model.kind,
        default_output_tokens: model.defaultOutputTokens,
        upstreams: model.routes.map(({ upstream }) => upstream),
        /**
         * The routes to the model. Where token counts above the bound have raised it, `bound_overhead_tokens` is above 0 or
         * `bound_factor` above 1; both fade.
         */
        routes: model.routes.map(({ upstream, upstreamModel, contextLength, promptOverheadTokens, learned }) => {
          const { overheadTokens, permille } = fadedAt(learned, now);
          return {
            upstream,
            upstream_model: upstreamModel,
            context_length: Math.max(contextLength, learned.contextTokens),
            prompt_overhead_tokens: promptOverheadTokens,
            bound_overhead_tokens: overheadTokens,
            bound_factor: permille / 1000,
          };
        }),
      })),
    };
  }),
  /** Forgets the learned bounds of a model's routes, as they were when they were read. */
  'models.forget': command(v.strictObject({ id: Id }), async (app, { id }) => {
    const forgotten = await forgetBounds(app, app.catalogue.find(id), () => app.catalogue);
    return {
      id,
      forgotten: forgotten.map(({ upstream, upstreamModel, overheadTokens, permille, contextTokens }) => ({
        upstream,
        upstream_model: upstreamModel,
        bound_overhead_tokens: overheadTokens,
        bound_factor: permille / 1000,
        context_tokens: contextTokens,
      })),
    };
  }),
};
