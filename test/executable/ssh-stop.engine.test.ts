import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { openSshd } from '../compute/engines/sshd.ts';
import { hasComponent } from '../helper/component.ts';
import { installation, type Serving } from '../helper/executable.ts';
import { waitFor } from '../helper/waiting.ts';

/** For ever: a server that waits for its clients does not end. */
const DRAIN_SECONDS = 3600;
const FILE_BYTES = 8 * 1024 * 1024;
/** Kbit/s: with this the file would take for ever. */
const SLOW = '200';

test('at SIGTERM an open shell, a command and a transfer are told and end, at once; the lease is there for the next server', async (t) => {
  if (!hasComponent(t, 'openssh-client')) return;
  const pool = await openSshd(t);
  if (!pool) return;
  const host = { ...pool.host, price_hourly_usd: '0.36' };
  const settings = {
    drain_seconds: DRAIN_SECONDS,
    ssh: { listen: '127.0.0.1:0' },
    compute: { provider_two: { backend: 'ssh', hosts: [host] } },
  };
  const purser = installation(t, { settings });
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000c');
  const create = ['wallet', 'create', '--account', accounts[0].id, '--name', 'agent', '--budget-cents', '500'];
  const { agent_token: token } = await purser.json(...create);
  const order = { provider: 'provider_two', spec: { chip: 'test-chip', max_seconds: 600 } };
  const { id } = (await server.ask('POST', '/v1/compute/create', { token, key: randomUUID(), body: order })).body;
  const at = (name: string) => join(purser.directory, name);
  writeFileSync(at('big'), Buffer.alloc(FILE_BYTES));

  /** What OpenSSH's clients need to reach it through this server. */
  const access = async (it: Serving) => {
    const { body } = await it.ask('POST', '/v1/compute/ssh', { token, body: { id } });
    writeFileSync(at('key'), body.private_key, { mode: 0o600 });
    writeFileSync(at('known'), `[${body.host}]:${body.port} ${body.host_key}\n`);
    const options = ['-F', 'none', '-i', at('key'), '-o', `UserKnownHostsFile=${at('known')}`, '-o', 'BatchMode=yes'];
    return { options: [...options, '-o', `Port=${body.port}`], target: `${body.username}@${body.host}` };
  };
  /** Starts one of OpenSSH's clients; `begun` resolves when it has said `first`. */
  const connect = (
    to: Awaited<ReturnType<typeof access>>,
    program: string,
    args: string[],
    first: string,
    command: string[] = [],
  ) => {
    const child = spawn(program, [...to.options, ...args, to.target, ...command]);
    t.after(() => child.kill('SIGKILL'));
    let said = '';
    const begun = Promise.withResolvers<void>();
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text: string) => {
        said += text;
        if (said.includes(first)) begun.resolve();
      });
    const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
    child.stdin.on('error', () => {}); // It may be gone.
    const write = (line: string) => child.stdin.write(`${line}\n`);
    return { write, ended, said: () => said, begun: waitFor(() => `${program} says ${first}: ${said}`, begun.promise) };
  };
  const open = await access(server);
  const shell = connect(open, 'ssh', ['-tt'], 'in the 7');
  shell.write('echo in the $((3 + 4))');
  const command = connect(open, 'ssh', [], 'begun', ['echo begun; sleep 1000']);
  const transfer = connect(open, 'sftp', ['-l', SLOW], 'Uploading');
  transfer.write(`put ${at('big')} big`);
  const clients = [shell, command, transfer];
  await Promise.all(clients.map((it) => it.begun));

  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  for (const it of clients) {
    const code = await waitFor(() => `the client ends: ${it.said()}`, it.ended);
    if (it === transfer) assert.notEqual(code, 0, 'sftp may end by SIGPIPE when its ssh is gone');
    else assert.equal(code, 255);
    assert.match(it.said(), /purser: the server is stopping; what you rent goes on/);
  }

  const next = await purser.serve();
  const again = connect(await access(next), 'ssh', [], 'left: 0', [
    'echo left: $(ps -o args | grep -c "[s]leep 1000")',
  ]);
  await again.begun;
  assert.equal(await waitFor('a command ends', again.ended), 0);
  await next.stop();
});
