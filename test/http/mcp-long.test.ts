import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';

test('a message whose id, method or tool is longer than any is refused, and not answered with it', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const ping = { jsonrpc: '2.0', id: 1, method: 'ping' };
  const long = 'x'.repeat(257);
  for (const [body, param] of [
    [{ ...ping, id: long }, 'id'],
    [{ ...ping, id: [long] }, 'id'],
    [{ ...ping, method: long }, 'method'],
    [{ ...ping, method: 'tools/call', params: { name: long } }, 'params.name'],
  ] as const) {
    const { status, text } = await purser.ask('POST', '/v1/mcp', { token, body });
    assert.equal(status, 400);
    assert.match(text, new RegExp(`${param}: must be at most 256 characters`));
    assert(!text.includes(long));
  }
  const { status } = await purser.ask('POST', '/v1/mcp', { token, body: { ...ping, id: 'x'.repeat(256) } });
  assert.equal(status, 200);
});
