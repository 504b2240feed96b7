import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { openRootlessPodman } from './engines/rootless.ts';
import { openSshd } from './engines/sshd.ts';
import { containerSubject } from './engines/subject.ts';

test('the Podman of another user, who has no rights, rents out containers: by its socket and over SSH', async (t) => {
  const engine = await openRootlessPodman(t);
  const sshd = engine && (await openSshd(t));
  if (!sshd) return;
  const { host } = sshd;
  for (const settings of [
    { socket: engine.socket },
    {
      socket: `ssh://root@127.0.0.1:${host.port}${engine.socket.slice('unix://'.length)}`,
      host_key: host.host_key,
      identity_file: host.identity_file,
    },
  ]) {
    const { backend, spec } = containerSubject(settings);
    const [found] = await backend.doctor.check();
    assert.match(`${found?.ok} ${found?.detail}`, /^true Podman \d+/);
    const quote = await backend.quote(spec);
    const now = Math.floor(Date.now() / 1000);
    const tag = 'purser-inst-conformance-res-rootless';
    const made = await backend.create({ tag, quote, deadline: now + 600 });
    assert.deepEqual(made, { kind: 'created', ref: tag });
    await backend.guest.upload(tag, '/tmp/file', Buffer.from('uploaded'));
    const ran = await backend.guest.exec(tag, {
      command: 'cat /tmp/file; exit 3',
      timeoutSeconds: 60,
      streamBytesMax: 1000,
    });
    assert.deepEqual([ran.exitCode, ran.stdout.toString()], [3, 'uploaded']);
    assert.deepEqual(await backend.extend(tag, now + 900), { kind: 'done' });
    assert.equal((await backend.inspect(tag))?.deadline, now + 900);
    const soon = Math.floor(Date.now() / 1000) + 2;
    assert.deepEqual(await backend.extend(tag, soon), { kind: 'done' });
    const ended = await until('its deadline has ended it', async () => {
      const machine = await backend.inspect(tag);
      return machine?.state === 'ended' && machine;
    });
    assert.match(ended.note ?? '', /^its deadline has passed/);
    await backend.destroy(tag);
    assert.equal(await backend.inspect(tag), undefined);
    await backend.close();
  }
});
