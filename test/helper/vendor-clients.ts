import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

/** Creates the vendors' own clients of the gateway at `url`, without retries. */
export function vendorClients(url: string, apiKey: string): { anthropic: Anthropic; openai: OpenAI } {
  const settings = { baseURL: `${url}/v1/router`, apiKey, maxRetries: 0 };
  return { anthropic: new Anthropic(settings), openai: new OpenAI(settings) };
}
