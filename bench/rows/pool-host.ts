import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openSshBackend } from '../../src/compute/engines/ssh/ssh.ts';
import { openSshd } from '../../test/compute/engines/sshd.ts';
import { median, range } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const ROUNDS = 60;
const CHIP = 'test-chip';
const now = () => Math.floor(Date.now() / 1000);

/** Root's own ~/.bashrc of a host, which sshd's bash reads. */
const withBashrc = (text: string) => ({
  settings: ['SetEnv SHLVL=0'], // As the outermost shell bash reads it.
  prepare: `mount -t tmpfs none /root; echo '${text}' > /root/.bashrc`,
});

/**
 * A warm exec of `true` on a pool host whose login shell takes three seconds to start, in turn with OpenSSH's own client over its
 * kept connection (ControlMaster) to one whose login shell reads nothing.
 */
export async function poolHost(): Promise<Line[]> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-bench-'));
  await using stack = new AsyncDisposableStack();
  stack.defer(() => rmSync(directory, { recursive: true, force: true }));
  const skip = () => {
    throw new Error('needs root and sshd');
  };
  const t = { skip, after: (end?: unknown) => stack.defer(end as () => Promise<void>) };
  const [slow, quick] = [await openSshd(t, withBashrc('sleep 3')), await openSshd(t, withBashrc(''))];
  assert(slow && quick, 'without sshd it throws');
  const { host } = quick;
  const settings = {
    backend: 'ssh' as const,
    hosts: [slow.host],
    limits: { max_seconds: 86_400 },
    provision_seconds: 60,
  };
  const backend = openSshBackend(settings, { leases: directory, now });
  stack.defer(() => backend.close());
  const quote = await backend.quote({ chip: CHIP, max_seconds: 600 });
  const made = await backend.create({ tag: `purser-bench-${process.pid}`, quote, deadline: now() + 600 });
  assert(made.kind === 'created', JSON.stringify(made));
  stack.defer(() => backend.destroy(made.ref));

  const options = ['StrictHostKeyChecking=no', 'UserKnownHostsFile=/dev/null', `ControlPath=${directory}/control`];
  const to = ['-F', 'none', '-q', '-i', host.identity_file, '-p', String(host.port), 'root@127.0.0.1'];
  const argv = [...options.flatMap((it) => ['-o', it]), ...to];
  execFileSync('ssh', ['-f', '-N', '-M', ...argv], { stdio: 'ignore' });
  stack.defer(() => void execFileSync('ssh', ['-O', 'exit', ...argv], { stdio: 'ignore' }));

  const runs = {
    purser: () => backend.guest.exec(made.ref, { command: 'true', timeoutSeconds: 60, streamBytesMax: 1000 }),
    control: () => once(spawn('ssh', [...argv, 'true'], { stdio: 'ignore' }), 'exit'),
  };
  const taken = { purser: [] as number[], control: [] as number[] };
  for (let round = 0; round < ROUNDS; round++)
    for (const name of ['purser', 'control'] as const) {
      const at = performance.now();
      await runs[name]();
      taken[name].push(performance.now() - at);
    }
  const [purser, control] = [median(taken.purser), median(taken.control)];
  return [
    {
      what: 'warm exec on a pool host with a .bashrc of 3 s, over `ssh` with ControlMaster to one with an empty one',
      goal: '≤ 1.3×',
      measured: `${figure(purser / control)}×`,
      beside: `${figure(purser)} ms (${range(taken.purser)}) against ${figure(control)} ms (${range(taken.control)})`,
    },
  ];
}
