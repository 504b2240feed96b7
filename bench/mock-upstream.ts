// A model server: node:http, one canned answer. mock-upstream.c takes its place for single answers where there is a compiler. It runs
// as a separate process, so that it takes no time from the measured one. GET /count returns how many completions it has given. A streamed request gets
// 512 chunks, one per turn of the event loop, or 16, one every `pause` milliseconds. The model "long" streams without
// end, as fast as it is read. With a `status` it answers
// everything with that error.
import { createServer, type ServerResponse } from 'node:http';

const [delay, pause, status = 200, port] = process.argv.slice(2).map(Number);
const ANSWER = Buffer.from(
  JSON.stringify({
    id: 'chatcmpl-mock',
    object: 'chat.completion',
    created: 1,
    model: 'mock-1',
    choices: [{ index: 0, message: { role: 'assistant', content: 'Hello from the mock.' }, finish_reason: 'stop' }],
    usage: { prompt_tokens: 12, completion_tokens: 5, total_tokens: 17 },
  }),
);
const HEADERS = { 'content-type': 'application/json', 'content-length': ANSWER.length };

const STREAM_TOKENS = pause ? 16 : 512;
const chunk = (rest: object) =>
  `data: ${JSON.stringify({ id: 'chatcmpl-mock', object: 'chat.completion.chunk', created: 1, model: 'mock-1', ...rest })}\n\n`;
const TOKEN = chunk({ choices: [{ index: 0, delta: { content: ' word' }, finish_reason: null }] });
const LAST = `${chunk({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })}${chunk({ choices: [], usage: { prompt_tokens: 12, completion_tokens: STREAM_TOKENS, total_tokens: 12 + STREAM_TOKENS } })}data: [DONE]\n\n`;

function stream(response: ServerResponse): void {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  let left = STREAM_TOKENS;
  const next = () => {
    if (left-- === 0) return response.end(LAST);
    response.write(TOKEN);
    if (pause) setTimeout(next, pause);
    else setImmediate(next);
  };
  next();
}

const MANY = TOKEN.repeat(100);

function streamForever(response: ServerResponse): void {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const more = () => {
    while (!response.destroyed) if (!response.write(MANY)) return;
  };
  response.on('drain', more);
  more();
}

let count = 0;
const server = createServer((request, response) => {
  if (request.method === 'GET') {
    response.end(String(count));
    return;
  }
  let [isStream, isLong] = [false, false];
  request.on('data', (bytes: Buffer) => {
    isStream ||= bytes.includes('"stream":true');
    isLong ||= bytes.includes('"model":"long"');
  });
  request.on('end', () => {
    count++;
    if (status !== 200) {
      response.writeHead(status, { 'content-type': 'application/json' }).end('{"error":{"message":"overloaded"}}');
      return;
    }
    const answer = () => {
      if (isLong) streamForever(response);
      else if (isStream) stream(response);
      else response.writeHead(200, HEADERS).end(ANSWER);
    };
    if (delay) setTimeout(answer, delay);
    else answer();
  });
});
server.keepAliveTimeout = 60_000; // Longer than any pause of the bench: a closed connection would count as an error.
server.listen(port, '127.0.0.1');
