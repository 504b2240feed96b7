import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { until, waitFor } from '../helper/waiting.ts';
import { openInside, TEMPLATES } from './shared.ts';

/** A server whose template `started` runs a command first. */
const openStarting = (t: TestContext, start: string, body: object = {}) =>
  openInside(t, body, {
    settings: { compute: { templates: { ...TEMPLATES, started: { ...TEMPLATES.base, start } } } },
  });

test('the command of a template has ended, with the variables of the sandbox, before a client has that', async (t) => {
  const { run } = await openStarting(t, 'sleep 0.3\necho "$HOUSE" >"$HOME/started"; exit 3', {
    templateID: 'started',
    envVars: { HOUSE: 'here' },
  });
  const it = await run('cat "$HOME/started"');
  await it.end();
  assert.equal(it.printed('stdout'), 'here\n');
});

test('a server that a template starts listens before a client has the sandbox, and goes on', async (t) => {
  // Nobody else gets the port before the server inside has it, which shares it.
  const held = createServer().listen({ port: 0, host: '127.0.0.1', reusePort: true });
  t.after(() => held.close());
  await once(held, 'listening');
  const { port } = held.address() as AddressInfo;
  const script = `require('http').createServer((_, to) => to.end('up')).listen({ port: ${port}, host: '127.0.0.1', reusePort: true })`;
  const start = `sleep 0.3\nexec ${process.execPath} -e "${script}"`;
  const { purser, wallet, sandbox } = await openStarting(t, start, { templateID: 'started' });
  held.close();
  await once(held, 'close');
  const headers = {
    'e2b-sandbox-id': sandbox.sandboxID,
    'e2b-sandbox-port': String(port),
    'e2b-traffic-access-token': sandbox.trafficAccessToken,
  };
  const answer = await purser.ask('GET', '/v1/e2b/envd/', { headers });
  const asked = { token: wallet.token, body: { id: `res_${sandbox.sandboxID}` } };
  const { body } = await purser.ask('POST', '/v1/compute/process/list', asked);
  assert.deepEqual([answer.status, answer.text], [200, 'up'], JSON.stringify(body));
});

test('a create that is taken over does not start the command of the first again', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-start-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const [ran, go] = [join(directory, 'ran'), join(directory, 'go')];
  const start = `echo ran >>${ran}; until [ -e ${go} ]; do sleep 0.1; done; echo ended >>${ran}`;
  const { purser, wallet } = await openStarting(t, start);
  const headers = { 'x-api-key': wallet.token };
  const body = { templateID: 'started', metadata: { of: 'this test' } };
  const create = (signal?: AbortSignal) =>
    purser.ask('POST', '/v1/e2b/v2/sandboxes', { headers, body, ...(signal ? { signal } : {}) });
  const leaving = new AbortController();
  const left = create(leaving.signal).catch(() => undefined);
  await until('the command runs', () => existsSync(ran));
  leaving.abort();
  await left;
  const second = create();
  writeFileSync(go, '');
  const made = await waitFor('the second create', second);
  assert.equal(made.status, 201, made.text);
  const asked = { token: wallet.token, body: { id: `res_${made.body.sandboxID}` } };
  const list = async () => (await purser.ask('POST', '/v1/compute/process/list', asked)).body.processes;
  await until('both creates have asked for it, and are done', async () => {
    const states = (await list()).map((it: { status: string }) => it.status);
    return states.length === 2 && !states.includes('running');
  });
  assert.equal(readFileSync(ran, 'utf8'), 'ran\nended\n');
});
