/** The models of every test server, by default. Prices are in USD. */
export const MODELS = [
  {
    id: 'chat',
    upstream: 'local',
    upstream_model: 'real/chat',
    context_length: 32768,
    max_output_tokens: 1000,
    pricing: { prompt: '0.000001', completion: '0.000002', request: '0.0001' },
  },
  { id: 'flat', upstream: 'local', context_length: 32768, max_output_tokens: 1000, pricing: { request: '0.01' } },
  { id: 'free', upstream: 'local', context_length: 32768, max_output_tokens: 1000, pricing: { request: '0' } },
  {
    id: 'dear',
    upstream: 'local',
    context_length: 32768,
    max_output_tokens: 1000,
    pricing: { prompt: '0', completion: '0.01', request: '0' },
  },
  { id: 'unpriced', upstream: 'local', context_length: 32768, max_output_tokens: 1000 },
];
