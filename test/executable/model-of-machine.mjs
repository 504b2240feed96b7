// A model server inside a booted machine, on the port where vLLM listens.
import http from 'node:http';

const MODELS = { data: [{ id: 'qwen3:8b', owned_by: 'vllm', max_model_len: 32_768 }] };

/** Counts 10 and 10 tokens, or what one token of a check costs. */
const completion = ({ model, max_tokens }) => ({
  id: 'chatcmpl-test',
  object: 'chat.completion',
  created: 1,
  model,
  choices: [{ index: 0, message: { role: 'assistant', content: 'hello' }, finish_reason: 'stop' }],
  usage:
    max_tokens === 1
      ? { prompt_tokens: 9, completion_tokens: 1, total_tokens: 10 }
      : { prompt_tokens: 10, completion_tokens: 10, total_tokens: 20 },
});

http
  .createServer(async (request, response) => {
    const chunks = await Array.fromAsync(request);
    const answer = request.url === '/v1/models' ? MODELS : completion(JSON.parse(Buffer.concat(chunks)));
    response.setHeader('content-type', 'application/json').end(JSON.stringify(answer));
  })
  .listen(8000, '127.0.0.1');
