import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { stringify } from 'yaml';
import { EXECUTABLE } from '../helper/executable.ts';
import { bootMachine, type Machine } from '../helper/systemd.ts';
import { until } from '../helper/waiting.ts';

/**
 * Run by hand: a systemd that is booted in a container wants control groups as not every machine has them. It runs the unit as it
 * is, with the sandbox of an ssh pool; the container and slurm backends were not run in that sandbox.
 */

/** Purser as `purser install` leaves it, and a pool of one host beside it. */
async function install(t: TestContext) {
  const machine = await bootMachine(t, ['openssh-server', 'curl'], {
    [EXECUTABLE]: '/root/purser',
  });
  if (!machine) return undefined;
  const { sh } = machine;
  await sh('/root/purser install --yes');
  await succeeds(machine, 'curl -sf http://127.0.0.1:7420/readyz');

  await sh(`mkdir -p /root/.ssh && ssh-keygen -q -t ed25519 -N '' -f /var/lib/purser/id
    cp /var/lib/purser/id.pub /root/.ssh/authorized_keys && chown purser: /var/lib/purser/id`);
  const [type, blob] = (await sh('cat /etc/ssh/ssh_host_ed25519_key.pub')).split(' ');
  const host = { address: '127.0.0.1', host_key: `${type} ${blob}`, identity_file: '/var/lib/purser/id' };
  const hosts = [{ chip: 'chip', ...host, price_hourly_usd: '1' }];
  const yaml = stringify({ compute: { provider_two: { backend: 'ssh', hosts } } });
  await sh(`cat > /etc/purser/purser.yaml <<'END'\n${yaml}END\nsystemctl restart purser`);
  await succeeds(machine, 'curl -sf http://127.0.0.1:7420/readyz');
  return machine;
}

const succeeds = ({ sh }: Machine, line: string): Promise<string> =>
  until(`\`${line}\` succeeds`, () => sh(line).catch(() => undefined));

test('the installed service runs under systemd: money and leases in its sandbox, restarts, a read-only disk, a stop', async (t) => {
  const machine = await install(t);
  if (!machine) return;
  const { sh } = machine;
  const show = async (name: string) => sh(`systemctl show purser --property ${name} --value`);
  const cli = async (...args: string[]) => JSON.parse(await sh(`purser --json ${args.join(' ')}`));
  const ask = async (token: string, path: string, body?: object) => {
    const fields = [
      `Authorization: Bearer ${token}`,
      'Content-Type: application/json',
      `Idempotency-Key: ${randomUUID()}`,
    ];
    const data = body ? `--data-binary '${JSON.stringify(body)}'` : '';
    const said = await sh(`curl -s ${fields.map((it) => `-H '${it}'`).join(' ')} ${data} http://127.0.0.1:7420${path}`);
    return JSON.parse(said);
  };

  const status = await sh(`cat /proc/$(systemctl show purser --property MainPID --value)/status`);
  assert.match(status, /^NoNewPrivs:\t1$/m);
  assert.match(status, /^Seccomp:\t2$/m, 'the system calls are filtered');
  assert.match(status, /^CapBnd:\t0+$/m);
  const uid = await sh('id -u purser');
  assert.match(status, new RegExp(`^Uid:\t${uid}\t`, 'm'));

  const { accounts } = await cli('account', 'list');
  await cli('account', 'credit', accounts[0].id, '1000c');
  const { key } = await cli('key', 'create', '--account', accounts[0].id, '--name', 'tester');
  const wallet = await ask(key, '/v1/wallets', { name: 'agent', budget_cents: 500, expires_in_seconds: 0 });
  const token = wallet.agent_token;
  // A body this large is read by a thread of its own, which lets the others go first: the filter allows that.
  const [head, tail] = ['{"model":"none","messages":[{"role":"user","content":"', '"}],"max_tokens":1}'];
  await sh(
    `{ printf '${head}'; head -c 300000 /dev/zero | tr '\\0' x; printf '${tail}'; } | curl -s -H 'Authorization: Bearer ${token}' -H 'Content-Type: application/json' --data-binary @- http://127.0.0.1:7420/v1/chat/completions`,
  );
  const stats = '/proc/$(systemctl show purser --property MainPID --value)/task/*/stat';
  const nices = (await sh(`sed 's/.*) //' ${stats} | cut -d' ' -f17`)).split('\n');
  assert.deepEqual([...new Set(nices)].sort(), ['0', '10']);
  const spec = { chip: 'chip', max_seconds: 600 };
  const lease = await ask(token, '/v1/compute/create', { provider: 'provider_two', spec });
  assert.equal(lease.status, 'running', JSON.stringify(lease));
  const { stdout } = await ask(token, '/v1/compute/exec', { id: lease.id, command: 'echo $((6 * 7))' });
  assert.equal(stdout, '42\n');
  const gateway = await ask(token, '/v1/compute/ssh', { id: lease.id });
  await sh(
    `umask 077; cat > /root/key <<'END'\n${gateway.private_key}END\necho '[${gateway.host}]:${gateway.port} ${gateway.host_key}' > /root/known`,
  );
  const ssh = `-i /root/key -o UserKnownHostsFile=/root/known -o BatchMode=yes`;
  assert.equal(
    await sh(`ssh ${ssh} -p ${gateway.port} ${gateway.username}@${gateway.host} 'echo through the gateway'`),
    'through the gateway',
  );
  await sh(`echo a file > /root/a && scp ${ssh} -P ${gateway.port} /root/a ${gateway.username}@${gateway.host}:b`);

  await sh('kill -KILL $(systemctl show purser --property MainPID --value)');
  await succeeds(
    machine,
    'test $(systemctl show purser --property NRestarts --value) = 1 && curl -sf http://127.0.0.1:7420/readyz',
  );
  assert.equal((await ask(token, '/v1/compute/exec', { id: lease.id, command: 'cat b' })).stdout, 'a file\n');
  const budget = await ask(token, '/v1/budget');
  assert.equal(budget.used_usd, '0.166666667');
  await ask(token, '/v1/compute/stop', { id: lease.id });

  await sh('systemctl stop purser');
  assert.deepEqual([await show('Result'), await show('ExecMainStatus')], ['success', '0']);

  await sh('mount --bind /var/lib/purser /var/lib/purser && mount -o remount,bind,ro /var/lib/purser');
  await sh('systemctl start purser');
  await succeeds(machine, "journalctl --unit purser --output cat | grep 'code=exited, status=5'");
  assert.match(
    await sh('journalctl --unit purser --output cat'),
    /^The file system of \/var\/lib\/purser is read-only: /m,
  );
  await sh('umount /var/lib/purser');
  await succeeds(machine, 'curl -sf http://127.0.0.1:7420/readyz');
  assert.deepEqual((await cli('ledger', 'verify')).problems, []);
});
