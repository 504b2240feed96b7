import assert from 'node:assert/strict';
import { connect } from 'node:net';
import test, { type TestContext } from 'node:test';
import { newId } from '../../src/base/id.ts';
import type { Backend } from '../../src/compute/backend.ts';
import { selfTest } from '../../src/compute/self-test.ts';
import { systemOutside } from '../../src/egress/outside.ts';
import { openSite, PUBLIC } from '../egress/proxy-shared.ts';
import { openTestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { type Engine, IMAGE, openDocker } from './engines/docker.ts';
import { LXD_IMAGE, openLxd } from './engines/lxd.ts';
import { openPodman } from './engines/podman.ts';
import { rentOne } from './rented.ts';

type Opened = { settings: object; stop(): unknown };
const containers = (engine: Engine | undefined): Opened | undefined =>
  engine && { settings: { backend: 'container', socket: engine.socket, image: IMAGE }, stop: engine.stop };

const ENGINES: [name: string, open: (t: TestContext) => Promise<Opened | undefined>][] = [
  ['Docker', async (t) => containers(await openDocker(t, { shared: true }))],
  ['Podman', async (t) => containers(await openPodman(t))],
  [
    'LXD',
    async (t) => {
      const lxd = await openLxd(t);
      return lxd && { settings: { backend: 'lxd', socket: lxd.socket, image: LXD_IMAGE, user: 0 }, stop: lxd.stop };
    },
  ],
];
const ANSWER = 'HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n';

for (const [name, openEngine] of ENGINES)
  test(`${name}: a lease reaches what is in the operator’s list, and nothing else`, async (t) => {
    const engine = await openEngine(t);
    if (!engine) return;
    t.after(() => engine.stop());
    const site = await openSite(t, ANSWER);
    const asked: string[] = [];
    const outside = {
      async lookUp(host: string) {
        asked.push(host);
        return [PUBLIC];
      },
      dial: () => connect({ host: '127.0.0.1', port: site.port, allowHalfOpen: true }),
      isOwn: () => false,
      trust: systemOutside.trust,
    };
    const prices = { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' };
    const slot = {
      ...engine.settings,
      prices,
      limits: { cpus: 4, memory_gib: 4 },
      egress: ['good.test', '*.better.test:8080'],
    };
    const purser = await openTestServer(t, { settings: { compute: { provider_one: slot } }, outside });
    const { id, token, sh } = await rentOne(purser, { cpus: 1, memory_gib: 0.25 });

    // The first command finds the way out open.
    assert.equal(await sh('wget -q -O - http://good.test/'), 'hello\n');
    assert.equal(await sh('wget -q -O - http://a.better.test:8080/'), 'hello\n');
    assert.match(await sh('wget -q -O - http://bad.test/'), /403 Forbidden/);
    assert.match(await sh(`wget -q -O - http://${PUBLIC}/`), /403 Forbidden/);
    const variables = await sh('env | grep -i _proxy | sort');
    assert.equal(variables.split('\n').filter((it) => it.includes('=')).length, 8, variables);
    // What ignores the proxy has no network, and no name server.
    assert.equal((await sh('ls /sys/class/net')).trim(), 'lo');
    assert.match(await sh('unset http_proxy; wget -q -T 2 -O - http://good.test/ || echo none'), /none/);
    assert.match(await sh('nc -w 2 172.17.0.1 80 </dev/null || echo none'), /none/);
    assert.deepEqual(asked, ['good.test', 'a.better.test']);

    const status = await purser.ask('POST', '/v1/compute/status', { token, body: { id } });
    const reached = status.body.egress as { host: string; bytes: number; refused: number }[];
    assert.deepEqual(
      reached.map(({ host, bytes, refused }) => [host, bytes > 0, refused]),
      [
        ['good.test', true, 0],
        ['a.better.test', true, 0],
        ['bad.test', false, 1],
        [PUBLIC, false, 1],
      ],
    );
    assert.equal(purser.log.filter((it) => it.includes('egress.refused')).length, 2);

    // The tenant, though root inside, cannot end the program: it belongs to the watchdog's user.
    const found =
      'for it in $(ls /proc); do [ "$(head -c 11 /proc/$it/cmdline 2>/dev/null)" = /proc/1/exe ] && echo $it; done';
    const programs = async () => (await sh(found)).trim().split('\n');
    assert.match(await sh(`kill -9 ${(await programs())[0]}`), /not permitted/);
    assert.equal(await sh('wget -q -O - http://good.test/'), 'hello\n');

    const { backend } = purser.app.slots.list[0] as { backend: Backend };
    const tried = await selfTest({ backend, provisionSeconds: 60 }, newId('inst'), () => Math.floor(Date.now() / 1000));
    const disk = name === 'LXD' ? '' : ' its disk: .*;'; // LXD’s is not tried.
    assert.match(tried.detail, new RegExp(`and its way out opened;${disk} it was destroyed and is gone$`));
    assert(tried.ok);

    // A server that starts again opens it again, and leaves one program.
    await purser.reopen();
    await until('the way out is open again', async () => (await sh('wget -q -O - http://good.test/')) === 'hello\n');
    assert.equal((await programs()).length, 1);

    // Nothing passes once the lease has ended.
    const stopped = await purser.ask('POST', '/v1/compute/stop', { token, body: { id } });
    assert.equal(stopped.body.status, 'stopped', stopped.text);
  });
