import assert from 'node:assert/strict';
import { networkInterfaces } from 'node:os';
import test, { type TestContext } from 'node:test';
import { until } from '../helper/waiting.ts';
import { openLeaseServer } from '../lease/docker-leases.ts';
import { type LeaseServer, LONG } from '../lease/leases.ts';
import { COPIED_WATCHDOG, deadlineInside, type Engine } from './engines/docker.ts';

/** What leases run on: the engine, settings of the slot, and what moves the deadline of a container. */
export type Ground = {
  engine(t: TestContext): Promise<Engine | undefined>;
  settings: object;
  watchdog: string[];
};

const openOn = (t: TestContext, { engine, settings }: Ground, env = {}) => {
  const change = (it: Record<string, any>) => {
    Object.assign(it.compute.provider_one, settings);
    return it;
  };
  return openLeaseServer(t, { env, change }, engine);
};

/** A lease of a wallet of its own, and a shell in it. */
export async function enter(purser: LeaseServer) {
  const { token } = await purser.openWallet(LONG);
  const { id, provider_id: ref } = (await purser.lease(token)).body;
  return {
    id,
    ref,
    token,
    async sh(command: string, timeout = 20): Promise<string> {
      const { status, body, text } = await purser.ask('POST', '/v1/compute/exec', {
        token,
        body: { id, command, timeout },
      });
      assert.equal(status, 200, text);
      return (body.stdout + body.stderr).trim();
    },
  };
}

/** Attempts to write what is a machine's or the host's, to leave the lease, or to look into it from outside; each is refused. */
const ATTEMPTS = [
  '/.purser-watchdog 9999999999',
  '/.purser-watchdog',
  '/proc/1/exe 9999999999',
  'echo 9999999999 > /proc/1/fd/9',
  'ls /proc/1/map_files/',
  'cat /proc/1/mem',
  'echo x > /proc/1/mem',
  'echo x > /.purser-watchdog',
  'chmod u+w /.purser-watchdog',
  'chown 0 /.purser-watchdog',
  'chrt -f -p 1 1',
  'mount -o remount,rw /proc',
  'umount /proc',
  'mount -t tmpfs none /proc',
  'mount -t tmpfs none /mnt',
  'mount --bind /etc /mnt',
  'date -s "2001-01-01 00:00:00" && [ "$(date +%Y)" = 2001 ]', // busybox calls it a success.
  'hostname other',
  'mknod /tmp/disk b 8 0 && head -c 1 /tmp/disk',
  'mknod /tmp/memory c 1 1 && head -c 1 /tmp/memory',
  'head -c 1 /dev/mem',
  'head -c 1 /dev/kmsg',
  'head -c 1 /proc/kcore | grep -q .',
  'echo 1 > /proc/sys/kernel/panic',
  'echo /tmp/x > /proc/sys/kernel/core_pattern',
  'echo c > /proc/sysrq-trigger',
  'echo 100000000 > /sys/fs/cgroup/memory.max',
  'mkdir /sys/fs/cgroup/mine || mkdir /sys/fs/cgroup/memory/mine',
  'echo always > /sys/kernel/mm/transparent_hugepage/enabled',
  'insmod /bin/sh',
  'reboot -f',
  'swapoff -a && [ -s /proc/swaps ]',
  'unshare -m true',
  'unshare -n true && unshare -m true',
  'nsenter -t 1 -m true',
  'chroot / true && unshare -p true',
  'kill -KILL 1; kill -STOP 1; kill -0 1 && test ! -e /proc/1/exe', // Neither has an effect on the first process.
];
/** On the host's own kernel only: gVisor keeps a niceness that it does not use, and makes nodes that lead to no device. */
const ON_THE_HOSTS_KERNEL = ['renice -n 19 -p 1', 'mknod /tmp/disk b 8 0'];

/** Registers the tests of what a tenant can do from inside of a lease. */
export function stayInside(name: string, ground: Ground): void {
  const isGVisor = ground.watchdog === COPIED_WATCHDOG;

  test(`${name}: whoever is in a lease sees nothing of Purser, of its machine’s secrets or of other tenants`, async (t) => {
    const purser = await openOn(t, ground, { CANARY_IN_PURSERS_ENVIRONMENT: 'canary' });
    if (!purser) return;
    process.env.CANARY_OF_THE_PROCESS = 'canary';
    t.after(() => delete process.env.CANARY_OF_THE_PROCESS);
    const [one, two] = [await enter(purser), await enter(purser)];
    await two.sh('echo the-secret-of-two > /secret; (exec -a neighbour sleep 999 || sleep 999) >/dev/null 2>&1 &');

    const environment = await one.sh('cat /proc/[0-9]*/environ 2>/dev/null | tr "\\0" "\\n" | sort -u; env');
    for (const name of environment.split('\n').map((line) => line.split('=')[0]))
      assert.match(
        String(name),
        /^(PATH|HOME|HOSTNAME|PWD|SHLVL|OLDPWD|PURSER_EXEC|NVIDIA_VISIBLE_DEVICES|USER|SHELL|LOGNAME|TERM|container|_|)$/,
        'no name of ours',
      );
    assert.doesNotMatch(environment, /canary|svc_|cnv_/i);

    const processes = await one.sh('for it in /proc/[0-9]*; do tr "\\0" " " < $it/cmdline; echo; done');
    assert.doesNotMatch(processes, /neighbour|sleep 999|node|dockerd|containerd|podman|conmon/);
    const files = await one.sh('find / -xdev -type f 2>/dev/null | grep -v "^/\\(bin\\|proc\\|sys\\)/" | sort');
    assert.doesNotMatch(files, /secret|purser\.(db|yaml|sock)|master|docker\.sock|podman\.sock|ssh_host|authorized/);
    assert.match(files, /^\/\.purser-watchdog$/m);
    assert.equal(await one.sh('hostname'), 'lease');

    const status = await one.sh(
      'grep -E "^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):" /proc/self/status | tr "\\t\\n" "  "',
    );
    assert.match(status, /CapPrm: 0+ +CapEff: 0+ +CapBnd: 0+ /);
    // gVisor, whose kernel is not the host's, shows these of none.
    if (!isGVisor) assert.match(status, /NoNewPrivs: 1 +Seccomp: 2/);
  });

  test(`${name}: whoever is in a lease reaches neither the host, nor Purser, nor a neighbour`, async (t) => {
    const purser = await openOn(t, ground);
    if (!purser) return;
    const { sh } = await enter(purser);
    assert.equal(await sh('ls /sys/class/net'), 'lo');
    assert.doesNotMatch(await sh('ip route'), /default|via/);
    const { port } = new URL(purser.url);
    const addresses = Object.values(networkInterfaces()).flatMap((them) => them?.map((it) => it.address) ?? []);
    for (const address of [...addresses, '169.254.169.254'])
      assert.equal(
        await sh(`nc -w 1 ${address} ${port} </dev/null >/dev/null 2>&1 && echo reached; true`),
        '',
        address,
      );
    assert.equal((await purser.ask('GET', '/healthz')).status, 200, 'it listens there');
  });

  test(`${name}: whoever is in a lease cannot write what is not his, nor move his deadline or the clock`, async (t) => {
    const purser = await openOn(t, ground);
    if (!purser) return;
    const { sh, id, ref, token } = await enter(purser);
    const end = (await purser.status(token, id)).expires_at;
    const attempts = [...ATTEMPTS, ...(isGVisor ? [] : ON_THE_HOSTS_KERNEL)].map(
      (it) => `(${it}) >/dev/null 2>&1 && echo '${it}'`,
    );
    assert.equal(await sh(`${attempts.join('\n')}\necho tried`), 'tried');
    assert.equal(await deadlineInside(purser.engine.docker, ref, ground.watchdog), end);
    assert.equal((await purser.status(token, id)).status, 'running');
  });

  test(`${name}: whoever is in a lease has no more memory and processes than it rents`, async (t) => {
    const purser = await openOn(t, ground);
    if (!purser) return;
    const neighbour = await enter(purser);
    const greedy = 'dd if=/dev/zero of=/dev/null bs=300M count=1 2>/dev/null; echo $?';
    const members = `for i in $(seq 600); do { exec </dev/shm/crowd 8>&- 9>&-; read _; } & done; wait`;
    for (const [command, refusal] of [
      [`mkfifo /dev/shm/crowd; exec 9<>/dev/shm/crowd; ${members}`, /can't fork/],
      [greedy, /^137$/],
    ] as const) {
      const { sh, ref } = await enter(purser);
      if (!isGVisor) assert.match(await sh(command, 60), refusal);
      else {
        // The kernel of a lease takes its memory from it, and goes with all that runs on it: the command is not waited for.
        await sh(`(${command}) </dev/null >/dev/null 2>&1 &`);
        const { note } = await until('it has ended', async () => {
          const machine = await purser.backend.inspect(ref);
          return machine?.state === 'ended' && machine;
        });
        assert.match(note ?? '', /out of memory|^its kernel \(runsc\) ended, most often for lack of memory/);
      }
      assert.equal(await neighbour.sh('echo here'), 'here');
    }
  });
}
