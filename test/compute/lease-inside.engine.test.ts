import assert from 'node:assert/strict';
import test from 'node:test';
import { openEngine } from '../../src/compute/engines/container/engine.ts';
import { beginIn } from '../../src/compute/engines/container/program.ts';
import { createGuest } from '../../src/compute/machine/guest.ts';
import { until } from '../helper/waiting.ts';
import { openLeaseServer } from '../lease/docker-leases.ts';
import { type LeaseServer, LONG, PRICE } from '../lease/leases.ts';
import { deadlineInside } from './engines/docker.ts';

/** A lease of a wallet of its own, and a shell in it. */
async function enter(purser: LeaseServer) {
  const { token } = await purser.openWallet(LONG);
  const { id, provider_id: ref } = (await purser.lease(token)).body;
  return {
    id,
    ref,
    token,
    async sh(command: string, timeout = 20): Promise<string> {
      const { status, body, text } = await purser.ask('POST', '/v1/compute/exec', {
        token,
        body: { id, command, timeout },
      });
      assert.equal(status, 200, text);
      return (body.stdout + body.stderr).trim();
    },
  };
}

test('whoever is in a lease sees nothing of Purser, of its machine’s secrets or of other tenants', async (t) => {
  const purser = await openLeaseServer(t, { env: { CANARY_IN_PURSERS_ENVIRONMENT: 'canary' } });
  if (!purser) return;
  process.env.CANARY_OF_THE_PROCESS = 'canary';
  t.after(() => delete process.env.CANARY_OF_THE_PROCESS);
  const [one, two] = [await enter(purser), await enter(purser)];
  await two.sh('echo the-secret-of-two > /secret; (exec -a neighbour sleep 999 || sleep 999) >/dev/null 2>&1 &');

  const environment = await one.sh('cat /proc/[0-9]*/environ 2>/dev/null | tr "\\0" "\\n" | sort -u; env');
  for (const name of environment.split('\n').map((line) => line.split('=')[0]))
    assert.match(
      String(name),
      /^(PATH|HOME|HOSTNAME|PWD|SHLVL|OLDPWD|PURSER_EXEC|NVIDIA_VISIBLE_DEVICES|USER|SHELL|LOGNAME|_|)$/,
      'no name of ours',
    );
  assert.doesNotMatch(environment, /canary|svc_|cnv_/i);

  const processes = await one.sh('for it in /proc/[0-9]*; do tr "\\0" " " < $it/cmdline; echo; done');
  assert.doesNotMatch(processes, /neighbour|sleep 999|node|dockerd|containerd/);
  const files = await one.sh('find / -xdev -type f 2>/dev/null | grep -v "^/\\(bin\\|proc\\|sys\\)/" | sort');
  assert.doesNotMatch(files, /secret|purser\.(db|yaml|sock)|master|docker\.sock|ssh_host|authorized/);
  assert.match(files, /^\/\.purser-watchdog$/m);
  assert.equal(await one.sh('hostname'), 'lease');

  // Only loopback, and no way to the engine, the host, or the neighbour.
  assert.equal(await one.sh("ip -o link | awk '{print $2}'"), 'lo:');
  assert.equal(await one.sh('ip route'), '');

  const status = await one.sh('grep -E "^(CapEff|CapPrm|CapBnd|NoNewPrivs)" /proc/self/status | tr "\\t\\n" "  "');
  assert.match(status, /CapPrm: 0+ +CapEff: 0+ +CapBnd: 0+ +NoNewPrivs: 1/);
});

test('whoever is in a lease cannot write what is not his, nor move his deadline or the clock', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { sh, id, ref, token } = await enter(purser);
  const end = (await purser.status(token, id)).expires_at;
  for (const command of [
    '/.purser-watchdog 9999999999',
    '/.purser-watchdog',
    '/proc/1/exe 9999999999',
    'echo 9999999999 > /proc/1/fd/9',
    'ls /proc/1/fd/',
    'ls /proc/1/map_files/',
    'cat /proc/1/mem',
    'echo x > /proc/1/mem',
    'echo x > /.purser-watchdog',
    'chmod u+w /.purser-watchdog',
    'chown 0 /.purser-watchdog',
    'chrt -f -p 1 1',
    'renice -n 19 -p 1',
    'mount -o remount,rw /proc',
    'umount /proc',
    'mount -t tmpfs none /proc',
    'date -s "2001-01-01 00:00:00" && [ "$(date +%Y)" = 2001 ]', // busybox calls it a success.
    'hostname other',
    'mknod /tmp/disk b 8 0',
    'echo 1 > /proc/sys/kernel/panic',
    'echo c > /proc/sysrq-trigger',
    'unshare -m true',
    'chroot / true && unshare -p true',
    'kill -KILL 1; kill -STOP 1; kill -0 1 && test ! -e /proc/1/exe', // Neither has an effect on the first process.
  ])
    assert.match(await sh(`(${command}) >/dev/null 2>&1 && echo DONE || echo refused`), /^refused$/, command);
  assert.equal(await deadlineInside(purser.engine.docker, ref), end);
  assert.equal((await purser.status(token, id)).status, 'running');
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
