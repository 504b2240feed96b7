import assert from 'node:assert/strict';
import test from 'node:test';
import { tryUpstream } from '../../src/doctor/upstream.ts';
import { freePort } from '../helper/free-port.ts';
import { openReceiver, status } from '../helper/receiver.ts';

test('a model server that answers is healthy only when its answer says so', async (t) => {
  const server = await openReceiver(t);
  const models: unknown[] = [];
  const look = () => tryUpstream({ base_url: `${server.url}/v1` }, (it) => models.push(it));
  server.reply = (_, response) => response.end('{"data":[]}');
  assert.match(await look(), /\/v1 answers \(GET \/models: 200\)$/);
  assert.deepEqual(models, [{ data: [] }]);

  const is = async (code: number, what: RegExp) => {
    server.reply = status(code, { location: '/elsewhere' });
    assert.match(await look().catch((error: Error) => `fault: ${error.message}`), what, `${code}`);
  };
  await is(400, /answers \(GET \/models: 400\)$/);
  await is(501, /answers \(GET \/models: 501\)$/); // It knows no list.
  await is(404, /^Warning: .* path of its base_url may be wrong/);
  await is(308, /^Warning: .* redirects, .* Set base_url/);
  await is(429, /^Warning: .* no more requests at the moment/);
  await is(401, /^fault: .* refuses our key \(401\)\. Check its api_key\./);
  await is(500, /^fault: .* answers 500 to GET \/models/);
  await is(503, /^fault: .* answers 503 to GET \/models/);

  await assert.rejects(
    tryUpstream({ base_url: `http://127.0.0.1:${await freePort()}/v1` }, () => {}),
    /cannot be reached \(ECONNREFUSED\)\. Nothing listens there\./,
  );
});
