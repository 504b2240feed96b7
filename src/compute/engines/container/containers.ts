import type { Machine, Ref } from '../../backend.ts';
import { TAG_LABEL } from '../../kit/claim.ts';
import { type Engine, statusOf, textOf, wasRemoved } from './engine.ts';

/**
 * The states of Docker and of Podman. A container that was made and not started never runs: its creator died in between, and it is
 * made again.
 */
export const STATES = new Map<unknown, Machine['state']>([
  ['running', 'running'],
  ['paused', 'running'],
  ['restarting', 'provisioning'],
  ...['created', 'configured', 'initialized', 'exited', 'stopped', 'stopping', 'removing', 'dead'].map(
    (it) => [it, 'ended'] as const,
  ),
]);

/** The engine has confirmed that there is no such container. */
export class ContainerGone extends Error {}

/** Finds and removes the containers of leases. */
export function createContainers({ docker, ask }: Engine) {
  /** Returns the container of a reference; undefined when the engine confirms that there is none. */
  async function look(ref: Ref) {
    try {
      const container = await ask('inspect', (abortSignal) => docker.getContainer(ref).inspect({ abortSignal }));
      // Only the engine's own message proves that there is no such container; an answer about another container proves nothing
      // about this one.
      if (nameOf(container) !== ref) throw new Error(`the engine does not answer for ${ref}`);
      return container;
    } catch (error) {
      if (wasRemoved(error)) return undefined;
      throw error;
    }
  }

  /** Returns the container of a reference. Throws ContainerGone when there is none. */
  async function inspect(ref: Ref) {
    const container = await look(ref);
    if (!container) throw new ContainerGone('the container is gone');
    return container;
  }

  /** Lists every container with our label, of all installations. */
  const labelled = () =>
    ask('list', (abortSignal) => docker.listContainers({ all: true, filters: { label: [TAG_LABEL] }, abortSignal }));

  /** Removes a container in any state; succeeds if it is gone or being removed. */
  async function remove(ref: Ref): Promise<void> {
    try {
      await ask('remove', (abortSignal) => docker.getContainer(ref).remove({ force: true, v: true, abortSignal }));
    } catch (error) {
      const isBeingRemoved = statusOf(error) === 409 && /already in progress/.test(textOf(error));
      if (!wasRemoved(error) && !isBeingRemoved) throw error;
    }
  }

  return { look, inspect, labelled, remove };
}
export type Containers = ReturnType<typeof createContainers>;
export type Inspected = Awaited<ReturnType<Containers['inspect']>>;

const nameOf = (container: { Name?: unknown } | null | undefined) =>
  typeof container?.Name === 'string' ? container.Name.replace(/^\//, '') : undefined;
