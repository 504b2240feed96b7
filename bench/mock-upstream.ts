// A model server that costs next to nothing: node:http, one canned answer. It runs as a process of its own, so that it
// takes no time from whoever is measured. GET /count answers how many completions it has given.
import { createServer } from 'node:http';

const [port, delay] = process.argv.slice(2).map(Number);
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

let count = 0;
const server = createServer((request, response) => {
  if (request.method === 'GET') {
    response.end(String(count));
    return;
  }
  request.on('end', () => {
    count++;
    const answer = () => response.writeHead(200, HEADERS).end(ANSWER);
    if (delay) setTimeout(answer, delay);
    else answer();
  });
  request.resume();
});
server.keepAliveTimeout = 60_000; // Longer than any pause of the bench: a closed connection would be measured as an error.
server.listen(port, '127.0.0.1');
