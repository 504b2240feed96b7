import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { parseJson } from '../base/parse-json.ts';

/** The model of the demo. It is embedded so that the demo needs no network, and served by a real HTTP server. */
export const ECHO_MODEL = 'echo';
const CHARACTERS_PER_TOKEN = 4;
const tokensOf = (text: string) => Math.ceil(text.length / CHARACTERS_PER_TOKEN);

type ChatMessage = { role: string; content: unknown };

/** Starts a chat-completion server on a free loopback port that repeats the last message and counts its tokens. */
export async function openEchoModel(): Promise<{ baseUrl: string; close(): Promise<void> }> {
  const server = http.createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request as AsyncIterable<Buffer>) chunks.push(chunk);
    const { messages, max_tokens: maxTokens } = parseJson(Buffer.concat(chunks).toString()) as {
      messages: ChatMessage[];
      max_tokens: number;
    };
    const message = String(messages.at(-1)?.content ?? '');
    const content = message.slice(0, maxTokens * CHARACTERS_PER_TOKEN);
    const promptTokens = messages.reduce((total, it) => total + tokensOf(String(it.content)), 0);
    const completionTokens = tokensOf(content);
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(
      JSON.stringify({
        id: `chatcmpl-echo-${Date.now()}`,
        object: 'chat.completion',
        created: Math.floor(Date.now() / 1000),
        model: ECHO_MODEL,
        choices: [
          {
            index: 0,
            message: { role: 'assistant', content },
            finish_reason: content.length < message.length ? 'length' : 'stop',
          },
        ],
        usage: {
          prompt_tokens: promptTokens,
          completion_tokens: completionTokens,
          total_tokens: promptTokens + completionTokens,
        },
      }),
    );
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    baseUrl: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
