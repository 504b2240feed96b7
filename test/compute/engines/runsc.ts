import type { TestContext } from 'node:test';
import { hasComponent } from '../../helper/component.ts';
import { type Engine, openDocker } from './docker.ts';

/** Names of runtimes at the engine of `openRunsc`: gVisor, one without control groups, and one that has a name only. */
export const RUNSC = 'runsc';
export const UNLIMITED = 'runsc-unlimited';
export const NO_WALL = 'kata';

/**
 * Debian's runsc (2022) knows the platform that needs no KVM as ptrace. It takes the network namespace of a newer kernel for the
 * host's own, and starts nothing there: so it is told to have no network.
 */
const runtimeArgs = ['--platform=ptrace', '--network=none'];
const runtimes = {
  [RUNSC]: { path: 'runsc', runtimeArgs },
  [UNLIMITED]: { path: 'runsc', runtimeArgs: [...runtimeArgs, '--ignore-cgroups'] },
  [NO_WALL]: { path: 'runc' },
};

/** Starts a real dockerd that also has gVisor as a runtime; without one, returns undefined and skips the test. */
export async function openRunsc(t: TestContext, options: { shared?: boolean } = {}): Promise<Engine | undefined> {
  if (!hasComponent(t, 'runsc')) return undefined;
  return openDocker(t, { ...options, settings: { runtimes } });
}
