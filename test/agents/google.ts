import type { IncomingMessage, ServerResponse } from 'node:http';

type Json = Record<string, any>;

/**
 * Google's Gemini API as far as Gemini CLI needs it: streamed answers of a model that is given the messages and tools of a chat
 * completion.
 */
export const googleApi =
  (model: (body: Json) => Json) =>
  async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    let text = '';
    for await (const chunk of request.setEncoding('utf8')) text += chunk;
    const { contents, tools = [] } = JSON.parse(text);
    const message = model({
      messages: contents.flatMap(({ role, parts }: Json) =>
        parts.map((part: Json) =>
          part.functionResponse
            ? { role: 'tool', content: JSON.stringify(part.functionResponse.response) }
            : { role: role === 'model' ? 'assistant' : 'user', content: part.text ?? '' },
        ),
      ),
      tools: tools.flatMap(({ functionDeclarations = [] }: Json) =>
        functionDeclarations.map(({ name, parametersJsonSchema }: Json) => ({
          type: 'function',
          function: { name, parameters: parametersJsonSchema },
        })),
      ),
    });
    const parts = message.tool_calls?.map((it: Json) => ({
      functionCall: { name: it.function.name, args: JSON.parse(it.function.arguments) },
    })) ?? [{ text: message.content }];
    const answer = JSON.stringify({
      candidates: [{ index: 0, content: { role: 'model', parts }, finishReason: 'STOP' }],
      usageMetadata: { promptTokenCount: 1, candidatesTokenCount: 1, totalTokenCount: 2 },
    });
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.end(`data: ${answer}\r\n\r\n`);
  };
