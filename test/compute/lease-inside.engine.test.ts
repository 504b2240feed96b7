import assert from 'node:assert/strict';
import test, { after, type TestContext } from 'node:test';
import { openEngine } from '../../src/compute/engines/container/engine.ts';
import { beginIn } from '../../src/compute/engines/container/program.ts';
import { createGuest } from '../../src/compute/machine/guest.ts';
import { until } from '../helper/waiting.ts';
import { openLeaseServer, sharedDocker } from '../lease/docker-leases.ts';
import { PRICE } from '../lease/leases.ts';
import { type Engine, WATCHDOG } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';
import { enter, stayInside } from './lease-inside-shared.ts';

let podman: Engine | undefined;
after(() => podman?.stop());

stayInside('Docker', { engine: sharedDocker, settings: {}, watchdog: WATCHDOG });
stayInside('Podman', {
  engine: async (t: TestContext) => (podman ??= await openPodman(t)),
  settings: {},
  watchdog: WATCHDOG,
});

test('whoever is in a lease can neither end, stop nor look into the watchdog: his deadline ends it, Purser or no Purser', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { sh, id, ref, token } = await enter(purser);
  assert.equal(await sh('id -u'), '0', 'commands run as whom the image wants');
  for (const command of ['kill -TERM 1', 'kill -INT 1', 'cat /proc/1/environ', 'ls /proc/1/cwd/'])
    assert.match(await sh(`(${command}) >/dev/null 2>&1 && echo DONE || echo refused`), /^refused$/, command);
  const deadline = Math.floor(Date.now() / 1000) + 10;
  await purser.backend.extend(ref, deadline);
  await until('its own deadline has ended it', async () => (await purser.backend.inspect(ref))?.state === 'ended');
  assert.ok(Date.now() / 1000 >= deadline);
  purser.clock.advance(61);
  await purser.app.reaper.runOnce();
  const ended = await purser.status(token, id);
  assert.deepEqual([ended.status, ended.end_reason, ended.charged_usd], ['stopped', 'provider_ended', PRICE]);
  assert.deepEqual(await purser.machines(), []);
});

test('a command whose client has gone does not outlive its timeout', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { sh, id, token } = await enter(purser);
  const gone = new AbortController();
  const left = fetch(`${purser.url}/v1/compute/exec`, {
    method: 'POST',
    signal: gone.signal,
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify({ id, command: 'sleep 4321 & setsid sleep 4321 & sleep 4321', timeout: 15 }),
  });
  const running = () => sh('ps -o args | grep -c "^sleep 4321$"; true');
  await until('it runs', async () => (await running()) === '3');
  gone.abort();
  await assert.rejects(left);
  assert.equal(await running(), '3', 'it has its time all the same');
  await until('it is over', async () => (await running()) === '0');
});

test('an upload that a tenant stops inside is given up, and its engine is not asked about it for ever', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { sh, ref } = await enter(purser);
  const stopsItself =
    '#!/bin/busybox sh\ncase "$*" in */tmp/stopped*) kill -STOP $$ ;; esac\nexec /bin/busybox sh "$@"\n';
  await sh(`printf '%s' '${stopsItself}' >/tmp/sh; chmod 755 /tmp/sh; mv /tmp/sh /bin/sh`);
  const engine = openEngine(purser.engine);
  const guest = createGuest((it, order) => beginIn(engine, it, order), { uploadMilliseconds: 1500 });
  const questions = t.mock.method(engine, 'ask');
  const content = Buffer.alloc(4 * 1024 * 1024);
  await assert.rejects(guest.upload(ref, '/tmp/stopped', content), { name: 'TimeoutError' });
  const asked = questions.mock.callCount();
  await new Promise((resolve) => setTimeout(resolve, 1500));
  assert.equal(questions.mock.callCount(), asked);
});
