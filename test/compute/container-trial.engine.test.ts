import assert from 'node:assert/strict';
import test from 'node:test';
import { newId } from '../../src/base/id.ts';
import { pack } from '../../src/compute/kit/tar.ts';
import { selfTest } from '../../src/compute/self-test.ts';
import { until } from '../helper/waiting.ts';
import { type Engine, openDocker } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';
import { openEngineProxy } from './engines/proxy.ts';
import { containerSubject } from './engines/subject.ts';

for (const [name, open] of [
  ['Docker', openDocker],
  ['Podman', openPodman],
] as const)
  test(`${name}: doctor says why a trial machine ended`, async (t) => {
    const engine: Engine | undefined = await open(t);
    if (!engine) return;
    if (name === 'Podman') t.after(engine.stop);
    const proxy = await openEngineProxy(t, engine);
    const { backend } = containerSubject({ socket: proxy.socket });
    const { exec } = backend.guest;
    const tried = async () => {
      const installation = newId('inst');
      const found = await selfTest({ backend, provisionSeconds: 60 }, installation, () =>
        Math.floor(Date.now() / 1000),
      );
      return `${found.ok}: ${found.detail}`;
    };
    const watchdogIs = (script: string) => {
      const program = Buffer.from(`#!/bin/sh\n${script}\n`);
      const archive = pack({ name: '.purser-watchdog', content: program, mode: 0o555, owner: 63541 });
      proxy.rewrite = (request, body) => (/^PUT .*archive/.test(request) ? archive : body);
    };
    assert.match(
      await tried(),
      /^true: .*ran a command; its disk: a lease that wrote more than disk_gb is ended; deleted files that are still open do not count\. Only quotas count them; it was destroyed and is gone$/,
    );

    watchdogIs('for i in $(seq 2000); do echo "line $i"; done; exit 38');
    const lines = [1996, 1997, 1998, 1999, 2000].map((it) => `line ${it}`).join(' | ');
    const why = `: its watchdog ended with exit code 38 (ENOSYS); the last of its output: ${lines}; it was destroyed`;
    const ended = await tried();
    assert.ok(ended.startsWith('false: ') && ended.includes(why), ended);
    watchdogIs('echo "no memory for deadlines" >&2; exit 12');
    assert.match(await tried(), /exit code 12 \(ENOMEM\); the last of its output: no memory for deadlines; /);

    // What fails first may be the command in it.
    backend.guest.exec = async (ref, order) => {
      await until('it has ended', async () => (await backend.inspect(ref))?.state === 'ended');
      return exec(ref, order);
    };
    watchdogIs('exec tail /dev/zero');
    assert.match(
      await tried(),
      /^false: .* ended by itself after \d+ s: it (ran out of memory|was killed, by somebody or for lack of memory); /,
    );
    watchdogIs('exit 0');
    assert.match(await tried(), /: its deadline has passed by the clock of the engine's machine; /);

    const broken = pack({ name: '.purser-watchdog', content: Buffer.from('no program'), mode: 0o444, owner: 63541 });
    proxy.rewrite = (request, body) => (/^PUT .*archive/.test(request) ? broken : body);
    const refused =
      /^false: No machine of the offer .* was made: The provider could not start .*\(.*permission denied.*\)$/is;
    assert.match(await tried(), refused);
    assert.deepEqual(await engine.docker.listContainers({ all: true }), [], 'nothing is left');
    await backend.close();
  });
