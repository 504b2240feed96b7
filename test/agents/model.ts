/** USD per token, as for a model of Claude Sonnet's class. */
export const PRICES = { prompt: '0.000003', input_cache_read: '0.0000003', completion: '0.000015' };

/** The model of the agents, as the settings have it. */
export const MODEL = {
  id: 'qwen3-8b',
  upstream: 'local',
  context_length: 262_144,
  max_output_tokens: 32_768,
  pricing: PRICES,
};
