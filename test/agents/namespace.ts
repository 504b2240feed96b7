import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readlinkSync, rmSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';

/** Purser's default port: what docs/mcp.md prints is true in the namespace, to the letter. */
const PORT = 7420;

/** Forwards connections in both directions. Each end is told when the other one ends or breaks off. */
function forward(target: net.NetConnectOpts): net.Server {
  return net.createServer({ allowHalfOpen: true }, (client) => {
    const server = net.connect({ ...target, allowHalfOpen: true });
    client.pipe(server).pipe(client);
    for (const [one, other] of [
      [client, server],
      [server, client],
    ] as const)
      one.once('error', () => other.destroy()).once('close', () => other.destroy());
  });
}

/**
 * A network namespace with nothing but loopback, in which `http://127.0.0.1:7420` is `port` of this machine. Whatever a program
 * in it wants of the network ends there. Needs root.
 */
export async function openNamespace(
  t: Pick<TestContext, 'after'>,
  port: number,
): Promise<{ command: readonly string[] }> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-namespace-'));
  const path = join(directory, 'socket'); // Such a socket belongs to no namespace.
  const outside = forward({ port, host: '127.0.0.1' }).listen(path);
  await once(outside, 'listening');
  const script = 'ip link set lo up && exec "$0" "$@"';
  const inside = spawn('unshare', ['--net', 'sh', '-c', script, process.execPath, import.meta.filename, path], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  t.after(async () => {
    if (inside.exitCode === null && inside.signalCode === null) {
      endAll(`/proc/${inside.pid}/ns/net`);
      inside.kill();
      await once(inside, 'exit');
    }
    outside.close();
    rmSync(directory, { recursive: true, force: true });
  });
  const [said] = await Promise.race([once(inside.stdout, 'data'), once(inside, 'exit')]);
  assert.equal(String(said), 'listening\n');
  return { command: ['nsenter', `--net=/proc/${inside.pid}/ns/net`, '--'] };
}

/** Ends every process of a namespace: agents leave daemons behind, each in a session of its own. */
function endAll(namespace: string): void {
  const network = networkOf(namespace);
  // It has ended, or has not got its own yet.
  if (network === undefined || network === networkOf('/proc/self/ns/net')) return;
  for (const name of readdirSync('/proc').filter((it) => /^\d+$/.test(it)))
    try {
      if (networkOf(`/proc/${name}/ns/net`) === network) process.kill(Number(name), 'SIGKILL');
    } catch {} // It has ended by itself.
}

function networkOf(namespace: string): string | undefined {
  try {
    return readlinkSync(namespace);
  } catch {
    return undefined; // The process has ended.
  }
}

// In the namespace this file is a program. It ends with whoever started it.
if (process.argv[1] === import.meta.filename) {
  process.stdin.resume().once('end', () => {
    process.exitCode = 0;
    inside.close();
  });
  const inside = forward({ path: process.argv[2] as string }).listen(PORT, '127.0.0.1', () =>
    process.stdout.write('listening\n'),
  );
}
