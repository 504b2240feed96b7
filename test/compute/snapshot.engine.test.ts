import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test, { after, type TestContext } from 'node:test';
import { WATCHDOG_PATH } from '../../src/compute/kit/watchdog.ts';
import { type Engine, openDocker, runAsRoot } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';
import { containerSubject } from './engines/subject.ts';
import { conformSnapshots, openOn } from './snapshot-shared.ts';

const shared: Engine[] = [];
after(() => Promise.all(shared.map((it) => it.stop())));
const once = (open: (t: TestContext) => Promise<Engine | undefined>) => {
  let opened: Promise<Engine | undefined> | undefined;
  return (t: TestContext) => {
    opened ??= open(t).then((it) => {
      if (it) shared.push(it);
      return it;
    });
    return opened;
  };
};
const ENGINES = { Docker: once((t) => openDocker(t, { shared: true })), Podman: once((t) => openPodman(t)) };

/** Machines of a container engine. */
const openSubject = (name: keyof typeof ENGINES) => async (t: TestContext) => {
  const engine = await ENGINES[name](t);
  if (!engine) return undefined;
  return {
    ...containerSubject({ socket: engine.socket }),
    engine,
    staysWhileNeeded: true,
    async stop(ref: string) {
      assert.deepEqual(await runAsRoot(engine.docker, ref, WATCHDOG_PATH, 'stop'), [0, '']);
    },
  };
};

for (const name of Object.keys(ENGINES) as (keyof typeof ENGINES)[]) {
  const open = openSubject(name);
  conformSnapshots(name, open);

  test(`${name}: an image of a snapshot has the settings of the template, and nothing of the lease or of Purser`, async (t) => {
    const opened = await openOn(t, open);
    if (!opened) return;
    const { machine, take, engine } = opened;
    const placeholder = randomBytes(16).toString('hex');
    const secrets = {
      variables: { TOKEN: placeholder },
      authority: '-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n',
    };
    const one = await machine({ secrets });
    assert.equal(await one.sh('echo $TOKEN; ls -a / | grep -c purser'), `${placeholder}\n3`);
    const { tag } = await take(one.ref);
    const image = engine.docker.getImage(`localhost/purser-snapshot:${tag}`);
    const container = await engine.docker.getContainer(one.ref).inspect();
    const template = await engine.docker.getImage(container.Image).inspect();
    const { Labels, ...config } = (await image.inspect()).Config;
    const { Labels: ofTemplate, ...expected } = template.Config;
    assert.deepEqual(config, expected);
    assert.deepEqual(Object.keys({ ...Labels, ...ofTemplate }), ['purser.snapshot_bytes']);
    let saved = '';
    for await (const chunk of await image.get()) saved += (chunk as Buffer).toString('latin1');
    assert.ok(!saved.includes(placeholder), 'neither in its settings nor in its layers');

    const two = await machine({ snapshot: tag });
    assert.equal(await two.sh('echo "<$TOKEN$SSL_CERT_FILE>"; ls -a / | grep purser'), '<>\n.purser-watchdog');
    const images = await engine.docker.listImages();
    assert.deepEqual(
      images.flatMap((it) => it.RepoTags ?? []).filter((it) => it.endsWith('.raw')),
      [],
    );
  });
}
