import type { Guest, Ref } from '../../src/compute/backend.ts';
import { createProcesses, type SandboxProcess } from '../../src/http/e2b/processes.ts';
import { createMemoryQuota } from '../../src/http/memory-quota.ts';

/** Starts a program with an input in a sandbox of its own. `send` gets each message about it. */
export async function startProcess(
  guest: Partial<Guest>,
  argv: [string, ...string[]],
  send: (message: Buffer) => undefined = () => undefined,
): Promise<SandboxProcess> {
  const processes = createProcesses({
    activity: { begin: () => () => {} },
    memory: createMemoryQuota(),
    tenantOf: () => ({ treeId: 'a' }),
    stallMilliseconds: 60_000,
  } as never);
  const { process } = await processes.start(
    { resource: { id: 'r', walletId: 'w' } as never, backend: { guest } as never, ref: 'machine' as Ref },
    {
      argv,
      ...{ env: {}, cwd: undefined, hasInput: true, seconds: 60 },
      ...{ terminal: undefined, tag: undefined, limit: undefined },
    },
    send,
  );
  return process;
}
