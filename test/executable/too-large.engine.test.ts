import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { promisify } from 'node:util';
import { hasComponent } from '../helper/component.ts';
import { installation } from '../helper/executable.ts';

/** Each client that people use sends a body over its limit, and has to see the 413. */

const MIB = 1024 * 1024;
const SIZES = [64 * 1024 + 1, 2 * MIB, 20 * MIB];
/** A resource's exec takes 64 KiB. */
const PATH = '/v1/compute/exec';
/** What is lost only sometimes is asked for more than once. */
const TIMES = 5;
const run = promisify(execFile);

async function openPurser(t: TestContext) {
  const purser = installation(t);
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000c');
  const create = ['wallet', 'create', '--account', accounts[0].id, '--name', 'agent', '--budget-cents', '500'];
  const { agent_token: token } = await purser.json(...create);
  return { purser, server, token: token as string };
}

const PYTHON = `
import http.client, sys, urllib.parse
url, token, size, chunked = urllib.parse.urlparse(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == 'true'
connection = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
body = (b' ' * min(65536, size - at) for at in range(0, size, 65536)) if chunked else b' ' * size
headers = {'authorization': 'Bearer ' + token, 'content-type': 'application/json'}
connection.request('POST', url.path, body, headers, encode_chunked=chunked)
answer = connection.getresponse()
print(answer.status, 'payload_too_large' in answer.read().decode())
`;

for (const isChunked of [false, true]) {
  const how = isChunked ? 'in chunks' : 'with its length';

  test(`Python's http.client sees the 413 of a body ${how}`, async (t) => {
    if (!hasComponent(t, 'python3')) return;
    const { server, token } = await openPurser(t);
    for (const size of SIZES)
      for (let i = 0; i < TIMES; i++) {
        const args = ['-c', PYTHON, server.url + PATH, token, String(size), String(isChunked)];
        assert.equal((await run('python3', args)).stdout, '413 True\n', `${size} bytes`);
      }
    await server.stop();
  });

  test(`Node's fetch sees the 413 of a body ${how}`, async (t) => {
    const { server, token } = await openPurser(t);
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
    for (const size of SIZES)
      for (let i = 0; i < TIMES; i++) {
        const bytes = Buffer.alloc(size, ' ');
        const body = isChunked ? new Blob([bytes]).stream() : bytes;
        const answer = await fetch(server.url + PATH, { method: 'POST', headers, body, duplex: 'half' } as RequestInit);
        assert.equal(answer.status, 413, `${size} bytes`);
        assert.match(await answer.text(), /payload_too_large/);
      }
    await server.stop();
  });

  test(`curl sees the 413 of a body ${how}`, async (t) => {
    if (!hasComponent(t, 'curl')) return;
    const { purser, server, token } = await openPurser(t);
    const file = join(purser.directory, 'body');
    const headers = [`authorization: Bearer ${token}`, 'content-type: application/json'];
    if (isChunked) headers.push('transfer-encoding: chunked');
    for (const expect of ['expect: 100-continue', 'expect:'])
      for (const size of SIZES) {
        writeFileSync(file, Buffer.alloc(size, ' '));
        const args = [...headers, expect].flatMap((it) => ['-H', it]);
        const { stdout } = await run('curl', ['-sS', ...args, '--data-binary', `@${file}`, server.url + PATH]);
        assert.equal(JSON.parse(stdout).error.code, 'payload_too_large', `${size} bytes, ${expect}`);
      }
    await server.stop();
  });
}

test('a body over its limit is not read for ever', async (t) => {
  const { server, token } = await openPurser(t);
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
  let sent = 0;
  const body = new ReadableStream({
    async pull(controller) {
      await turn(); // Otherwise the client may do nothing but send, and never read an answer.
      sent += MIB;
      controller.enqueue(Buffer.alloc(MIB, ' '));
    },
  });
  const asked = fetch(server.url + PATH, { method: 'POST', headers, body, duplex: 'half' } as RequestInit);
  const answer = await asked.catch(() => undefined); // It may go on sending, and lose the answer in the end.
  if (answer) assert.equal(answer.status, 413);
  assert(sent < 400 * MIB, `${sent} bytes were taken`);
  await server.stop();
});
