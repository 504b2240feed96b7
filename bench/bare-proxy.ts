// The bare proxy: what a gateway of the same parts costs that does nothing but forward. Hono, @hono/node-server and an undici
// Pool, as in Purser; both bodies are parsed, because a gateway has to see the model and the usage. It forwards what came as
// it came. `node bench/bare-proxy.ts <port> <port of the model server>`. GET /readyz says that it listens.
import { Readable } from 'node:stream';
import { serve } from '@hono/node-server';
import { Hono } from 'hono';
import { Pool } from 'undici';

const [port, upstreamPort] = process.argv.slice(2).map(Number);
const pool = new Pool(`http://127.0.0.1:${upstreamPort}`, { pipelining: 1 });
const headers = { 'content-type': 'application/json' };
const app = new Hono();
app.get('/readyz', (c) => c.text('ok'));
app.post('*', async (c) => {
  const bytes = Buffer.from(await c.req.arrayBuffer());
  const { stream } = JSON.parse(bytes.toString()) as { stream?: boolean };
  const answer = await pool.request({ path: '/v1/chat/completions', method: 'POST', headers, body: bytes });
  if (stream)
    return new Response(Readable.toWeb(answer.body) as ReadableStream, {
      headers: { 'content-type': 'text/event-stream' },
    });
  const text = await answer.body.text();
  JSON.parse(text);
  return new Response(text, { status: answer.statusCode, headers });
});
const server = serve({ fetch: app.fetch, port: port as number, hostname: '127.0.0.1' });
Object.assign(server, { keepAliveTimeout: 60_000 }); // Longer than any pause of the bench.
