import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { Secret } from '../../src/base/secret.ts';
import type { Backend } from '../../src/compute/backend.ts';
import { jobName, LEASE_LABEL } from '../../src/compute/engines/kubernetes/describe.ts';
import type { VastSettings } from '../../src/compute/engines/vast/settings.ts';
import { openVastBackend } from '../../src/compute/engines/vast/vast.ts';
import { CONTAINER_PREFIX, containerAt, kubernetesAt } from './engines/hostile.ts';
import { LXD_PREFIX, lxdSubject } from './engines/lxd.ts';

/** Answers with status 200 of a proxy before an engine, or of an engine that is just starting. They say nothing of any machine. */
const EMPTY = [
  '',
  'null',
  '0',
  '""',
  'false',
  '{}',
  '[]',
  '<html>',
  '{"kind":"Status"}',
  '{"kind":"JobList"}',
  '[null]',
];
const NO_LIST = EMPTY.filter((it) => it !== '[]');
const wrapped = ['{"type":"sync"}', ...['null', '0', '""', '{}'].map((it) => `{"type":"sync","metadata":${it}}`)];
const NO_PODS = '{"kind":"PodList","items":[]}';

/** Vast's own word that a call failed, under a status of success. */
const FAILED = '{"success":false,"error":"server_error","instances":[]}';

const TAG = (prefix: string) => `${prefix}res-fake`;
/** Answers with 404 of somebody who is not the engine, or about something else. */
const NOT_FOUND = [
  '',
  '<html>',
  '404 page not found',
  '{"message":"page not found"}',
  '{"kind":"Status"}',
  '{}',
  'null',
];

/** What an engine says of a container, in the words of Docker. */
const container = (name: string, status: string) =>
  JSON.stringify({ Id: 'a', Name: `/${name}`, State: { Status: status, ExitCode: 0 }, Config: {}, HostConfig: {} });
const instance = (name: string) => JSON.stringify({ type: 'sync', metadata: { name, status_code: 102, config: {} } });

type Engine = {
  prefix: string;
  /** Answers that say nothing of one machine, and of all. */
  answers: { one: string[]; list: string[] };
  open(t: TestContext, say: (path: string) => string, socket: string): Promise<Backend>;
};

/** Listens on a socket or a port, and answers `say(path)`, with the status that stands before it. */
async function listen(t: TestContext, say: (path: string) => string, at: string | 0) {
  const server = createServer((request, response) => {
    request.resume();
    const [, status, body] = /^(?:(\d{3}) )?(.*)$/s.exec(say(request.url ?? '')) as unknown as string[];
    response.writeHead(Number(status ?? 200)).end(body);
  });
  await once(at === 0 ? server.listen(0, '127.0.0.1') : server.listen(at), 'listening');
  t.after(() => server.close());
  return (server.address() as AddressInfo).port;
}

function vastAt(port: number, leases: string): Backend {
  const settings: VastSettings = {
    api_key: new Secret('key'),
    ...{ backend: 'vast', base_url: `http://127.0.0.1:${port}`, markup_percent: 0, image: 'x' },
    ...{ runtype: 'ssh_direct', provision_seconds: 600 },
  };
  const spacing = { search: 0, create: 0, show: 0, list: 0, attach: 0, destroy: 0, account: 0 };
  return openVastBackend(settings, { leases, now: () => 0, spacing });
}

const ENGINES: Record<string, Engine> = {
  container: {
    prefix: CONTAINER_PREFIX,
    answers: {
      one: [
        ...EMPTY,
        '{"State":{}}',
        '{"State":null}',
        ...['', 'unknown', 'constructor', 'Exited'].map((it) => container(TAG(CONTAINER_PREFIX), it)),
        ...[container('other', 'exited'), container('', 'exited')],
      ],
      list: NO_LIST,
    },
    async open(t, say, socket) {
      await listen(t, say, socket);
      return containerAt(socket);
    },
  },
  lxd: {
    prefix: LXD_PREFIX,
    answers: {
      one: [...EMPTY, ...wrapped, '{"type":"sync","metadata":[]}', instance('other')],
      list: [...EMPTY, ...wrapped],
    },
    async open(t, say, socket) {
      await listen(t, say, socket);
      return lxdSubject(`unix://${socket}`).backend;
    },
  },
  vast: {
    prefix: 'purser-inst-vast-',
    answers: {
      one: [...EMPTY, '{"instances":{}}', '{"instances":{"id":9,"actual_status":"exited"}}', FAILED],
      list: [...EMPTY, '{"instances":null}', '{"instances":[null]}', '{"instances":[{"id":"x"}]}', FAILED],
    },
    open: async (t, say, socket) => vastAt(await listen(t, say, 0), dirname(socket)),
  },
  kubernetes: {
    prefix: 'purser-inst-conformance-',
    answers: { one: EMPTY, list: EMPTY },
    async open(t, say) {
      const port = await listen(t, (path) => (/\/pods\b/.test(path) ? NO_PODS : say(path)), 0);
      return kubernetesAt(t, port)();
    },
  },
};

for (const [name, { prefix, answers, open }] of Object.entries(ENGINES))
  test(`an empty answer of ${name} is not read as a machine that is gone`, async (t) => {
    const directory = mkdtempSync(join(tmpdir(), 'purser-empty-'));
    let body = '';
    const backend = await open(t, () => body, join(directory, 'socket'));
    t.after(async () => {
      await backend.close();
      rmSync(directory, { recursive: true });
    });
    const tag = TAG(prefix);
    for (body of [...answers.one, ...NOT_FOUND.map((it) => `404 ${it}`)]) {
      await assert.rejects(backend.inspect(tag), Error, `inspect: ${body}`);
      if (name !== 'container') await assert.rejects(backend.find(tag), Error, `find: ${body}`);
    }
    for (body of answers.list) await assert.rejects(backend.listOwned(prefix), Error, `list: ${body}`);
  });

test('that Vast failed to show a machine is not read as its absence, though a list that lags lacks it as well', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-empty-'));
  const list = '{"success":true,"instances":[],"total_instances":0}';
  let shown = '{"success":false,"error":"server_error","instances":null}';
  const backend = vastAt(await listen(t, (path) => (path.includes('/v1/') ? list : shown), 0), directory);
  t.after(async () => {
    await backend.close();
    rmSync(directory, { recursive: true });
  });
  await assert.rejects(backend.inspect('7'), /server_error/);
  shown = '{"success":true,"instances":null}';
  assert.equal(await backend.inspect('7'), undefined);
});

test('a search that Vast says has failed is not read as one that found nothing for rent', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-empty-'));
  let found = '{"success":false,"error":"server_error","offers":[]}';
  const backend = vastAt(await listen(t, () => found, 0), directory);
  t.after(async () => {
    await backend.close();
    rmSync(directory, { recursive: true });
  });
  await assert.rejects(backend.offers(), /no list of offers: 200 .*server_error/);
  found = '{"success":true,"offers":[]}';
  assert.deepEqual(await backend.offers(), []);
});

test('a key that Vast says it did not take is sent again at once, whatever the status of that answer', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-empty-'));
  const instance = '{"instances":{"id":7,"label":"one","actual_status":"running"}}';
  const answers = ['{"success":false,"error":"busy"}', '500 oops', '{"success":true}'];
  const sent: (string | undefined)[] = [];
  const attach = () => {
    sent.push(answers[sent.length]);
    return sent.at(-1) ?? '';
  };
  const backend = vastAt(await listen(t, (path) => (path.endsWith('/ssh/') ? attach() : instance), 0), directory);
  t.after(async () => {
    await backend.close();
    rmSync(directory, { recursive: true });
  });
  assert.match(((await backend.extend('7', 600)) as { reason: string }).reason, /took no key: 200 .*busy/);
  for (let looks = 0; looks < 4; looks++) assert.equal((await backend.inspect('7'))?.state, 'provisioning');
  assert.deepEqual(sent, answers);
});

test('of what a cluster names beside the pods that it was asked for, nothing is removed', async (t) => {
  const name = jobName(TAG(''));
  const pod = (label: string, uid: string) => ({
    metadata: { name: `pod-${uid}`, uid, labels: { [LEASE_LABEL]: label } },
  });
  const items = [pod('other', 'a'), pod(name, 'b'), { metadata: { name: 'pod-c', uid: 'c' } }];
  const asked: string[] = [];
  const server = createServer((request, response) => {
    request.resume();
    const { method, url = '' } = request;
    if (method === 'DELETE') asked.push(url);
    const isList = /\/pods\?/.test(url);
    response.writeHead(isList || method === 'DELETE' ? 200 : 404);
    response.end(JSON.stringify(isList ? { kind: 'PodList', items } : { kind: 'Status', reason: 'NotFound' }));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => server.close());
  const backend = kubernetesAt(t, (server.address() as AddressInfo).port)();
  t.after(() => backend.close());
  await backend.destroy(TAG(''));
  assert.deepEqual(
    asked.map((it) => it.split('/').at(-1)),
    ['pod-b'],
  );
});

test('a machine of one lease that a provider names for another is not given to that', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-empty-'));
  const backend = vastAt(await listen(t, () => '{"success":true,"new_contract":7}', 0), directory);
  t.after(async () => {
    await backend.close();
    rmSync(directory, { recursive: true });
  });
  const spec = (id: string) => ({ offer_id: id, disk_gb: 8, max_seconds: 600 });
  const order = (id: string) => ({ quote: { spec: spec(id), priceHourly: 1n, maxSeconds: 600 }, deadline: 600 });
  assert.deepEqual(await backend.create({ tag: 'one', ...order('1') }), { kind: 'created', ref: '7' });
  assert.equal((await backend.create({ tag: 'two', ...order('2') })).kind, 'unknown');
  assert.deepEqual(await backend.create({ tag: 'one', ...order('1') }), { kind: 'created', ref: '7' });
});
