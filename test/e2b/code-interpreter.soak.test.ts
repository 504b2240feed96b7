import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { type Engine, importImage } from '../compute/engines/docker.ts';
import { piped, progress, ROOT } from '../executable/image-shared.ts';
import { hasComponent } from '../helper/component.ts';
import { minimalDebian } from '../helper/minimal-debian.ts';
import { openLeaseServer, sharedDocker } from '../lease/docker-leases.ts';
import { LONG } from '../lease/leases.ts';
import { passed, play } from './played.ts';

const IMAGE = 'localhost/code-interpreter:1';
const RECIPE = join(ROOT, 'docs/code-interpreter');
const OFFER = { id: 'kernel', cpus: 1, memory_gib: 0.5, max_disk_gb: 5, price_hourly_usd: '0.36', image: IMAGE };

/** Builds the recipe: from a minimal Debian under the name that it starts from, with packages of the mirror that this machine uses. */
async function buildRecipe(t: TestContext, { docker }: Engine, tree: string): Promise<void> {
  const base = piped(t, 'tar', ['--create', '--file=-', '--directory', tree, '--exclude=./proc/*', '.']);
  await importImage(docker, base, { repo: 'debian', tag: 'bookworm-slim' });
  const buildargs = Object.fromEntries(Object.entries(process.env).filter(([name]) => /_proxy$/i.test(name)));
  const recipe = piped(t, 'tar', ['--create', '--file=-', '--directory', RECIPE, '.']);
  const options = { t: IMAGE, networkmode: 'host', buildargs: buildargs as Record<string, string> }; // This engine has no bridge.
  await progress(docker, await docker.buildImage(recipe, options));
}

test('E2B’s code interpreter, unmodified, runs code in sandboxes of the recipe’s image', async (t) => {
  if (!hasComponent(t, 'e2b')) return;
  const tree = await minimalDebian(t);
  const engine = tree && (await sharedDocker(t));
  if (!tree || !engine) return;
  await buildRecipe(t, engine, tree);
  const spec = { offer_id: OFFER.id, disk_gb: 5 };
  const compute = {
    provider_three: { backend: 'container', socket: engine.socket, image: IMAGE, offers: [OFFER] },
    templates: { 'code-interpreter-v1': { provider: 'provider_three', spec, start: 'exec python3 /opt/kernel.py' } },
  };
  const purser = await openLeaseServer(t, { settings: { compute } });
  if (!purser) return;
  const { token } = await purser.openWallet({ ...LONG, expires_in_seconds: 172_800 });
  passed(await play(purser, token, 'code-interpreter.mjs'), 8);
});
