import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { EventEmitter } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Duplex } from 'node:stream';
import test from 'node:test';
import { beginIn as beginInContainer } from '../../src/compute/engines/container/program.ts';
import { beginIn as beginInPod } from '../../src/compute/engines/kubernetes/program.ts';
import { createStreams } from '../../src/compute/engines/kubernetes/stream.ts';
import { createGuest } from '../../src/compute/machine/guest.ts';
import type { Begin } from '../../src/compute/machine/program.ts';
import { frame } from '../compute/engines/frame.ts';
import { until } from '../helper/waiting.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { startProcess } from './processes-shared.ts';

// Input is answered by what became of it, on every engine. The machines are processes of this one, behind the protocols of engines.

const spawned = ([program = '', ...args]: readonly string[]): ChildProcess => {
  const child = spawn(program, args, { stdio: 'pipe' });
  child.stdin?.on('error', () => {});
  return child;
};

/** Podman, in whose containers a command's unread input is read once it has ended. */
function beginInPodman(): Begin {
  const exec = (argv: string[]) => {
    const child = spawned(argv);
    let code: number | null = null;
    const stream = new Duplex({
      read() {},
      write: (bytes: Buffer, _, done) => void child.stdin?.write(bytes, done),
      final: (done) => void child.stdin?.end(() => done()),
      destroy(error, done) {
        child.kill('SIGKILL');
        done(error);
      },
    });
    child.stdout?.on('data', (it) => stream.push(frame(1, it)));
    child.stderr?.on('data', (it) => stream.push(frame(2, it)));
    child.on('close', (it) => {
      code = it ?? 137;
      stream.push(null);
    });
    const inspect = async () => ({ Running: code === null, ExitCode: code });
    return { start: async () => stream, inspect, resize: async () => {} };
  };
  const engine = {
    docker: { getContainer: () => ({ exec: async ({ Cmd }: { Cmd: string[] }) => exec(Cmd) }) },
    ask: (_: string, call: () => unknown) => call(),
    isPodman: async () => true,
    defaultsOf: async () => ({ user: '0', directory: '/' }),
  };
  return (ref, order) => beginInContainer(engine as never, ref, order);
}

/** The socket of a cluster to a pod. */
class PodSocket extends EventEmitter {
  readonly OPEN = 1;
  readonly protocol = 'v5.channel.k8s.io';
  readyState = 1;
  readonly child: ChildProcess;
  constructor(argv: readonly string[]) {
    super();
    this.child = spawned(argv);
    this.child.stdout?.on('data', (it: Buffer) => this.emit('message', Buffer.concat([Buffer.of(1), it])));
    this.child.stderr?.on('data', (it: Buffer) => this.emit('message', Buffer.concat([Buffer.of(2), it])));
    this.child.on('close', () => {
      this.readyState = 3;
      this.emit('close');
    });
  }
  send(bytes: Buffer, done?: (error?: Error | null) => void) {
    if (bytes[0] === 255) this.child.stdin?.end(() => done?.());
    else this.child.stdin?.write(bytes.subarray(1), done ?? (() => {}));
  }
  terminate() {
    this.child.kill('SIGKILL');
  }
  pause() {}
  resume() {}
}

function beginInCluster(): Begin {
  const connect = async (path: string) => new PodSocket(new URL(path, 'http://x').searchParams.getAll('command'));
  const streams = createStreams({ connect } as never, 'pods');
  return (ref, order) => beginInPod(streams, ref, order);
}

for (const [engine, begin] of [
  ['Podman', beginInPodman()],
  ['Kubernetes', beginInCluster()],
] as const)
  test(`${engine}: input that a program has not read when it ends is not said to be read`, async (t) => {
    const go = join(temporaryDirectory(t), 'go');
    let said = '';
    const argv: [string, ...string[]] = [
      '/bin/sh',
      '-c',
      `echo begun; until [ -e '${go}' ]; do sleep 0.02; done; exit 3`,
    ];
    const process = await startProcess(createGuest(begin), argv, (message) => {
      said += JSON.parse(message.subarray(5).toString()).event.data.stdout ?? '';
      return undefined;
    });
    await until('it has begun', () => said.length > 0);
    const answerOf = (bytes: Buffer) =>
      process.write(bytes).then(
        () => 'read',
        (error) => error.message,
      );
    const large = Buffer.alloc(2 * 1024 * 1024, 'x');
    const answers = [answerOf(large), answerOf(Buffer.from('\n')), answerOf(large)];
    writeFileSync(go, '');
    await process.ended;
    for (const answer of await Promise.all(answers)) assert.notEqual(answer, 'read');
  });
