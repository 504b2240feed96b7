import type { Ref } from '../../backend.ts';
import { hasWatchdog, WATCHDOG_PATH, watchdogFor } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { type LxdApi, LxdRefusal } from './api.ts';
import type { LxdInstance } from './describe.ts';

/** Purser's own files in instances, by LXD's files API: of a container before it starts, of a virtual machine once its agent runs. */

/** The architectures of LXD in the words of the watchdog's files. */
const ARCHITECTURES: Record<string, string> = { x86_64: 'amd64', aarch64: 'arm64' };

export const filePath = (ref: Ref, path: string) => `/1.0/instances/${ref}/files?path=${encodeURIComponent(path)}`;

/** Returns the headers of a file for LXD, and for Incus. */
const headersOf = (owner: number, mode: string, type: string) =>
  Object.fromEntries(
    ['X-LXD', 'X-Incus'].flatMap((vendor) => [
      [`${vendor}-uid`, String(owner)],
      [`${vendor}-gid`, String(owner)],
      [`${vendor}-mode`, mode],
      [`${vendor}-type`, type],
    ]),
  );

type Ownership = { owner: number; mode: string };

export const putFile = (lxd: LxdApi, ref: Ref, path: string, content: Buffer, { owner, mode }: Ownership) =>
  lxd.ask('POST', filePath(ref, path), content, { headers: headersOf(owner, mode, 'file') });

/** Returns the watchdog for an architecture of LXD's. Throws LxdRefusal where there is none for it. */
export function watchdogOf(lxdArchitecture: string): Buffer {
  const architecture = ARCHITECTURES[lxdArchitecture] ?? lxdArchitecture;
  if (!hasWatchdog(architecture)) throw new LxdRefusal(`there is no watchdog for ${architecture}`, 400);
  return watchdogFor(architecture);
}

/** Puts the watchdog for the architecture of an instance into it. Throws LxdRefusal where there is none for it. */
export const putWatchdog = (lxd: LxdApi, { name, architecture }: LxdInstance) =>
  putFile(lxd, name, WATCHDOG_PATH, watchdogOf(architecture), { owner: WATCHDOG_USER, mode: '0555' });

/** Makes a directory that belongs to `owner`. Its parents belong to root. */
export async function putDirectory(lxd: LxdApi, ref: Ref, directory: string, owner: number): Promise<void> {
  const parts = directory.split('/').slice(1);
  for (let count = 1; count <= parts.length; count++) {
    const isOwners = count === parts.length && owner !== 0;
    const path = filePath(ref, `/${parts.slice(0, count).join('/')}`);
    await lxd.ask('POST', path, Buffer.alloc(0), {
      headers: headersOf(isOwners ? owner : 0, isOwners ? '0700' : '0755', 'directory'),
    });
  }
}
