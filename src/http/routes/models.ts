import { installationOf } from '../../ledger/installation.ts';
import { ModelList, modelRecord } from '../../wire/models.ts';
import { endpoint } from '../endpoint.ts';

export const MODEL_EXAMPLE = {
  id: 'qwen3-8b',
  object: 'model',
  created: 1795000000,
  owned_by: 'purser',
  context_length: 32768,
  max_output_tokens: 8192,
  pricing: { prompt: '0.0000001', completion: '0.0000004', request: '0.00' },
};

export const listModels = endpoint({
  summary: 'List the metered models with their limits and prices',
  scope: 'wallet',
  answer: ModelList,
  example: { answer: { object: 'list', data: [MODEL_EXAMPLE] } },
  run(app) {
    const { createdAt } = installationOf(app.ledger.read);
    return { body: { object: 'list', data: app.catalogue.list.map((model) => modelRecord(model, createdAt)) } };
  },
});
