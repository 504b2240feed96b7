import { randomBytes } from 'node:crypto';
import { TAG_LABEL } from '../../kit/claim.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import type { Engine } from './engine.ts';
import { readFile } from './files.ts';

const ROOT = '0:0';
const PASSWD_BYTES_MAX = 4 * 1024 * 1024;

type Calls = Pick<Engine, 'ask' | 'docker'>;

/** The user as a number, with the image's group behind a colon if it names one, and the working directory. */
export type ImageDefaults = { user: string; directory: string };

/**
 * Returns the defaults of an image (USER, WORKDIR). A user's name is looked up in the image, not by the engine: that would read the
 * container's own /etc/passwd, where a root tenant could give their name the watchdog's number. `prefix` is that of the installation's
 * tags.
 */
export async function imageDefaults(calls: Calls, image: string, prefix: string): Promise<ImageDefaults> {
  const { Config } = await calls.ask('inspect', () => calls.docker.getImage(image).inspect());
  const [name = '', group] = (Config.User || ROOT).split(':');
  const user = /^\d+$/.test(name) ? Number(name) : await lookUp(calls, image, name, prefix);
  if (user === WATCHDOG_USER)
    throw new Error(`the image runs its commands as user ${WATCHDOG_USER}, which is the watchdog's own`);
  return {
    user: group === undefined ? String(user) : `${user}:${group}`,
    directory: Config.WorkingDir || '/',
  };
}

/**
 * Returns the number of a user in the image's /etc/passwd, read from a container that is never started. It has a tag of no lease, so
 * that a sweep removes one that is left behind.
 */
async function lookUp({ ask, docker }: Calls, image: string, name: string, prefix: string): Promise<number> {
  const container = `${prefix}user-${randomBytes(8).toString('hex')}`;
  const order = { name: container, Image: image, Cmd: ['/bin/sh'], Labels: { [TAG_LABEL]: container } };
  await ask('create', (abortSignal) => docker.createContainer({ ...order, abortSignal }));
  try {
    const passwd = await readFile({ ask, docker }, container, '/etc/passwd', PASSWD_BYTES_MAX);
    for (const line of passwd?.toString().split('\n') ?? []) {
      const [entry, , number = ''] = line.split(':');
      if (entry === name && /^\d+$/.test(number)) return Number(number);
    }
    throw new Error(`the image runs its commands as ${name}, who is not in its /etc/passwd`);
  } finally {
    await ask('remove', (abortSignal) => docker.getContainer(container).remove({ v: true, abortSignal }));
  }
}
