import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { Worker } from 'node:worker_threads';
import { nameOf } from '../../../src/compute/engines/lxd/describe.ts';
import { openVastApi, VAST_SPACING, VAST_TIME_LIMITS } from '../../../src/compute/engines/vast/api.ts';
import { createVastOffers } from '../../../src/compute/engines/vast/offers.ts';
import { CONTAINER_PREFIX, containerAt, kubernetesAt } from './hostile.ts';
import { LXD_PREFIX, lxdSubject } from './lxd.ts';

/** Engines whose lists are as a test wants them. */

export type ListServer = {
  path: string;
  port: number;
  /** Makes these bytes every list of machines from now on, with another length announced if one is given. */
  answer(body: Buffer, announced?: number): Promise<unknown>;
};

/** It has a thread of its own, so that what it does is not counted as time of the thread under test. */
const SERVER = `
const { parentPort, workerData } = require('node:worker_threads');
const { createServer } = require('node:http');
let given = { body: Buffer.from('[]') };
parentPort.on('message', (it) => { given = it; parentPort.postMessage('taken'); });
const listen = (where) => new Promise((resolve) => {
  const server = createServer((request, response) => {
    const isList = new RegExp(workerData.lists).test(request.url);
    const body = isList ? given.body : Buffer.from(/networks/.test(request.url) ? '[]' : '{"Arch":"amd64"}');
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': (isList && given.announced) || body.length });
    if (isList && given.announced) response.write(body, () => response.destroy());
    else response.end(body);
  });
  server.listen(where, () => resolve(server.address().port));
});
Promise.all([listen({ port: 0, host: '127.0.0.1' }), listen({ path: workerData.path })]).then(([port]) => parentPort.postMessage(port));`;
const LISTS = '/containers/json|/(pods|jobs)[?]|/1.0/instances[?]|/bundles/';

export async function openListServer(t: TestContext): Promise<ListServer> {
  const path = join(tmpdir(), `purser-lists-${process.pid}.socket`);
  const thread = new Worker(SERVER, { eval: true, workerData: { path, lists: LISTS } });
  t.after(async () => {
    await thread.terminate();
    rmSync(path, { force: true });
  });
  const [port] = await once(thread, 'message');
  return {
    path,
    port,
    answer(body, announced) {
      const taken = once(thread, 'message');
      thread.postMessage({ body: new Uint8Array(body), announced });
      return taken;
    },
  };
}

/** How an engine is asked for all that it has, what stands around its list, and what a machine of it is there. */
export type Listing = {
  list(): Promise<unknown[]>;
  around: [before: string, after: string];
  machine(index: number): object;
};

const RES = 'res-0123456789abcdef';
const filler = { Command: 'sleep 600', Mounts: [{ Type: 'bind', Source: '/tmp/x'.repeat(50) }], more: 'x'.repeat(500) };

export function listingsOf(t: TestContext, { path, port }: ListServer): Record<string, Listing> {
  const container = containerAt(path);
  const kubernetes = kubernetesAt(t, port)();
  const lxd = lxdSubject(`unix://${path}`).backend;
  const spacing = Object.fromEntries(Object.keys(VAST_SPACING).map((name) => [name, 0])) as typeof VAST_SPACING;
  const vast = openVastApi(`http://127.0.0.1:${port}`, 'vast-key-0123456789', {
    spacing,
    timeLimits: VAST_TIME_LIMITS,
  });
  t.after(() => Promise.all([container, kubernetes, lxd, vast].map((it) => it.close())));
  const vastSettings = { runtype: 'ssh_proxy', markup_percent: 0, provision_seconds: 60 } as never;
  return {
    'a container engine': {
      list: () => container.listOwned(CONTAINER_PREFIX),
      around: ['[', ']'],
      machine: (i) => ({
        ...{ Id: `${i}`, Names: [`/${CONTAINER_PREFIX}${RES}${i}`], State: 'running', Created: 1, ...filler },
        Labels: { 'purser.tag': `${CONTAINER_PREFIX}${RES}${i}` },
      }),
    },
    'a Kubernetes cluster': {
      list: () => kubernetes.listOwned(''),
      around: ['{"kind":"PodList","metadata":{},"items":[', ']}'],
      machine: (i) => ({
        metadata: {
          name: `x${i}`,
          uid: `${i}`,
          creationTimestamp: '2026-01-01T00:00:00Z',
          annotations: { 'purser.tag': `t${i}` },
        },
        ...{ spec: filler, status: { phase: 'Running' } },
      }),
    },
    LXD: {
      list: () => lxd.listOwned(LXD_PREFIX),
      around: ['{"type":"sync","status_code":200,"metadata":[', ']}'],
      machine: (i) => {
        const tag = `${LXD_PREFIX}${RES}${i}`;
        const config = { 'user.purser.tag': tag, 'user.purser.created': '1', ...filler };
        return { name: nameOf(tag), status_code: 103, config, created_at: '2026-01-01T00:00:00Z' };
      },
    },
    Vast: {
      list: () => createVastOffers(vastSettings, vast, () => 1).offers(),
      around: ['{"offers":[', ']}'],
      machine: (i) => ({ id: i + 1, dph_total: 0.1, duration: 1e6, ...filler }),
    },
  };
}
