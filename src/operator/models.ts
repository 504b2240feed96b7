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
        upstreams: model.routes.map(({ upstream }) => upstream),
      })),
    };
  }),
};
