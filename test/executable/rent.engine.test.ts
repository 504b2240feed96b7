import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { IMAGE, openDocker } from '../compute/engines/docker.ts';
import { openSlurm } from '../compute/engines/slurm.ts';
import { openSshd } from '../compute/engines/sshd.ts';
import { installation, type Serving } from '../helper/executable.ts';
import { plainSsh } from '../helper/plain-ssh.ts';
import { until } from '../helper/waiting.ts';

const SECONDS = 60;
const CHIP = { cpus: 1, memory_gib: 0.25, price_hourly_usd: '0.36' };

type Case = {
  what: string;
  compute: Record<string, object>;
  provider: string;
  spec: object;
  /** So much USD for a second, exactly. */
  charged: string;
  /** Whether the engine itself still has something of ours. */
  isThere(): Promise<boolean>;
};

/** What an operator and an agent do, by the executable alone; then Purser is killed, and the lease ends all the same. */
async function rent(t: TestContext, it: Case): Promise<void> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-rent-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const purser = installation(t, {
    settings: { listen: '127.0.0.1:0', ssh: { listen: '127.0.0.1:0' }, compute: it.compute },
  });
  const server: Serving = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000c');
  const wallet = await purser.json(
    'wallet',
    'create',
    '--account',
    accounts[0].id,
    '--name',
    'a',
    '--budget-cents',
    '500',
  );
  const ask = (path: string, body: object, key?: string) =>
    server.ask('POST', `/v1/compute/${path}`, { token: wallet.agent_token, body, ...(key ? { key } : {}) });

  const created = await ask('create', { provider: it.provider, spec: it.spec }, randomUUID());
  assert.equal(created.status, 200, created.text);
  const { id } = created.body;
  const running = await until(`${it.what} runs`, async () => {
    const { body } = await ask('status', { id });
    assert.ok(['provisioning', 'running'].includes(body.status), JSON.stringify(body));
    return body.status === 'running' && body;
  });
  assert.deepEqual([running.charged_usd, running.reserved_usd, running.billing_state], [it.charged, '0.00', 'settled']);

  const access = (await ask('ssh', { id })).body;
  assert.equal(await plainSsh(access, directory, 'echo', 'over-ssh'), 'over-ssh\n');
  const killed = await plainSsh(access, directory, 'kill -TERM $$').catch(({ cause }) => cause.code);
  assert.equal(killed, 143, 'a signal is 128 and its number on every engine');
  const said = await ask('exec', { id, command: 'echo hello; exit 3' });
  assert.deepEqual([said.body.stdout, said.body.exit_code], ['hello\n', 3], said.text);
  const path = `/tmp/purser-rent-${randomBytes(6).toString('hex')}/file`;
  const upload = await ask('upload', { id, path, content_base64: Buffer.from('taken').toString('base64') });
  assert.equal(upload.status, 200, upload.text);
  assert.equal(await plainSsh(access, directory, 'cat', path), 'taken');
  await ask('exec', { id, command: `rm -r ${path.slice(0, path.lastIndexOf('/'))}` });

  const extended = await ask('extend', { id, additional_seconds: SECONDS }, randomUUID());
  if (it.provider === 'provider_one') assert.equal(extended.body.error.code, 'extension_not_supported');
  else {
    assert.equal(extended.status, 200, extended.text);
    assert.equal(extended.body.expires_at, running.expires_at + SECONDS);
    assert.equal(Number(extended.body.charged_usd), 2 * Number(it.charged));
  }

  server.kill('SIGKILL');
  await server.ended;
  assert.ok(await it.isThere(), 'it outlives Purser');
  await until(`${it.what} has ended by itself`, async () => !(await it.isThere()));
  assert.ok(Date.now() / 1000 >= (extended.body.expires_at ?? running.expires_at) - 1, 'not before its deadline');

  const again = await purser.serve();
  const ended = await until(`Purser knows that ${it.what} has ended`, async () => {
    const { body } = await again.ask('POST', '/v1/compute/status', { token: wallet.agent_token, body: { id } });
    return body.ended_at !== null && body;
  });
  assert.deepEqual([ended.status, ended.end_reason], ['stopped', 'lease_expired']);
  const closed = await purser.json('wallet', 'close', wallet.id, '--wait');
  assert.equal(closed.status, 'closed');
  assert.equal((await purser.cli('ledger', 'verify')).code, 0);
  await again.stop();
}

// Together: each waits for a deadline of a minute or two.
test('on real engines, by the executable alone', { concurrency: true }, async (t) => {
  await Promise.all([
    t.test('a container is rented, reached, and gone at its deadline though Purser was killed', async (t) => {
      const engine = await openDocker(t);
      if (!engine) return;
      const backend = { backend: 'container', socket: engine.socket, image: IMAGE };
      const prices = { cpu_hourly_usd: '0.36', memory_gib_hourly_usd: '0' };
      await rent(t, {
        what: 'the container',
        compute: { provider_one: { ...backend, prices, limits: { cpus: 1, memory_gib: 1 } } },
        provider: 'provider_one',
        spec: { cpus: 1, memory_gib: 0.25, max_seconds: SECONDS },
        charged: '0.006',
        isThere: async () => (await engine.docker.listContainers()).length > 0,
      });
    }),

    t.test(
      'a Slurm allocation is rented, extended, reached, and gone at its deadline though Purser was killed',
      async (t) => {
        const cluster = await openSlurm(t);
        if (!cluster) return;
        t.after(() => cluster.stop());
        await rent(t, {
          what: 'the job',
          compute: {
            provider_two: {
              backend: 'slurm',
              job_user: 'nobody',
              slurm_conf: cluster.conf,
              chips: { h100: { ...CHIP, gres: 'gpu:h100:1' } },
            },
          },
          provider: 'provider_two',
          spec: { chip: 'h100', max_seconds: SECONDS },
          charged: '0.006',
          isThere: async () => (await cluster.slurm('squeue', '-h')).trim() !== '',
        });
      },
    ),

    t.test(
      'a pool host is rented, extended, reached, and free again at its deadline though Purser was killed',
      async (t) => {
        const sshd = await openSshd(t, { chip: 'rtx4090' });
        if (!sshd) return;
        const { price_hourly_usd: _, ...host } = sshd.host;
        await rent(t, {
          what: 'the tenant',
          compute: { provider_two: { backend: 'ssh', hosts: [{ ...host, price_hourly_usd: '0.36' }] } },
          provider: 'provider_two',
          spec: { chip: 'rtx4090', max_seconds: SECONDS },
          charged: '0.006',
          isThere: async () => readFileSync('/etc/passwd', 'utf8').includes(`purser ${sshd.pool}`),
        });
      },
    ),
  ]);
});
