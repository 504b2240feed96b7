/** Returns a list of one model as LiteLLM publishes it: USD per token of the prompt, and twice that per token of the answer. */
export const priceList = (perToken: number, name = 'real/chat'): string =>
  JSON.stringify({
    [name]: {
      mode: 'chat',
      input_cost_per_token: perToken,
      output_cost_per_token: 2 * perToken,
      max_input_tokens: 32_000,
      max_output_tokens: 1000,
    },
  });
