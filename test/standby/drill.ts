import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { audit, fund } from '../executable/audit.ts';
import { type Chaos, unleash } from '../executable/chaos.ts';
import { openClients } from '../executable/clients.ts';
import { processMilliseconds } from '../helper/cpu.ts';
import { type Installation, installation, type Launched, type Serving } from '../helper/executable.ts';
import { MODELS } from '../helper/models.ts';
import { randomFrom } from '../helper/random.ts';
import { openUpstream, type UpstreamCall } from '../helper/upstream.ts';
import { pause, until, waitFor } from '../helper/waiting.ts';
import { type Leases, openLeases } from './leases.ts';
import { type Box, CUTS, type Mirror, openMirror, otherBox } from './mirror.ts';

/** For frozen disks, longer than a commit takes on a busy machine; and the longest, where nothing is to end by it. */
const [STALL_SECONDS, PATIENT_SECONDS] = [5, 300];
/** A cut comes after so many chats, and then at any moment of so many milliseconds. */
const [CHATS_MAX, MORE_MILLISECONDS_MAX] = [30, 100];
const KEY_VARIABLE = 'HOUSE_KEY';

/** Two boxes with Purser on one mirrored disk, clients that keep a journal, a model server that counts, and an engine. */
export type Drill = {
  mirror: Mirror;
  random: () => number;
  /** What the model server was called for, by the key of the box that called. */
  calls: UpstreamCall[];
  leases: Leases | undefined;
  /** Returns the key that a box calls the model server with. */
  keyOf(box: Box): string;
  /** Starts Purser on a box whose disk is mounted. */
  launch(box: Box): Launched;
  /** Puts load on a server until it is gone. */
  load(server: Serving): Promise<void>;
  /** Resolves at a random moment under load, when more chats than before have been acknowledged; or when the load is over. */
  aWhile(load: Promise<void>): Promise<void>;
  /** Retires a box, makes its disk a copy of the other's, and mounts the mirror on the other, which is returned. */
  takeOver(from: Box): Promise<Box>;
  /** Completes everything on a box, and compares the journals with the books. */
  judge(box: Box): Promise<void>;
  /** Says what was done. */
  report(): void;
};

/** Opens a drill on its first box. Returns undefined, and skips the test, where a disk cannot be mirrored. */
export async function openDrill(
  t: TestContext,
  seed: number,
  { stallSeconds = PATIENT_SECONDS } = {},
): Promise<Drill | undefined> {
  const mirror = await openMirror(t);
  if (!mirror) return undefined;
  const random = randomFrom(seed);
  const upstream = await openUpstream(t);
  const chaos: Chaos = unleash(upstream, random);
  let accountKey = '';
  const stage = { after: t.after.bind(t), skip: (why?: string) => t.diagnostic(`without machines: ${why}`) };
  const leases = await openLeases(stage, () => accountKey);

  await mirror.open(0);
  const keyOf = (box: Box) => `box-${box}`;
  const settings = {
    storage: { stall_seconds: stallSeconds },
    router: {
      upstreams: [{ name: 'local', base_url: upstream.url, api_key: `\${${KEY_VARIABLE}}`, timeout_seconds: 300 }],
      models: MODELS,
      uncertain: { after_seconds: 1, policy: 'charge' },
    },
    ...leases?.settings,
  };
  // The settings lie in the data directory, and come along.
  const box = (number: Box) =>
    installation(t, {
      directory: join(mirror.directoryOf(number), 'data'),
      settings: number === 0 ? settings : null,
      env: { [KEY_VARIABLE]: keyOf(number) },
    });
  const boxes: [Installation, Installation] = [box(0), box(1)];
  const { key } = await fund(boxes[0]);
  accountKey = key;
  execFileSync('sync', ['--file-system', boxes[0].directory]); // The settings too: an editor syncs what it saves.
  const clients = openClients(key, random, { diskMayFail: true });

  const first: { wall: number; own: number }[] = [];
  return {
    mirror,
    random,
    calls: upstream.calls,
    leases,
    keyOf,
    launch: (number) => boxes[number].launch('serve'),
    async load(server) {
      const started = performance.now() - server.readyMilliseconds;
      await server.ask('GET', '/v1/account', { token: key }).then(
        () => first.push({ wall: performance.now() - started, own: processMilliseconds(server.pid) }),
        () => {}, // It is gone already.
      );
      await Promise.all([clients.load(server), leases?.load(server)]);
    },
    async aWhile(load) {
      let isOver = false;
      const over = () => {
        isOver = true;
      };
      load.then(over, over);
      const acknowledged = () => clients.chats.filter((it) => it.outcome === 'charged').length;
      const enough = acknowledged() + 1 + Math.floor(random() * CHATS_MAX);
      await until('chats are acknowledged', () => isOver || acknowledged() >= enough);
      if (!isOver) await pause(random() * MORE_MILLISECONDS_MAX);
    },
    async takeOver(from) {
      const to = otherBox(from);
      await mirror.retire(from);
      await mirror.retire(to);
      mirror.synchronise(to);
      await mirror.open(to);
      return to;
    },
    async judge(number) {
      const server = await boxes[number].serve();
      await clients.replay(server);
      await clients.close(server);
      await clients.replay(server);
      await leases?.close(server);
      await server.stop();
      const { wallets, chats } = clients;
      assert.deepEqual(
        [...wallets, ...chats].filter((it) => it.outcome === 'unknown'),
        [],
        'in the end everything is known',
      );
      assert(
        chats.some((it) => it.outcome === 'charged'),
        'some were acknowledged',
      );
      await audit(boxes[number], clients, chaos, { servers: 1, others: leases ? [leases.walletId()] : [] });
      await leases?.audit(boxes[number]);
    },
    report() {
      const of = (outcome: string) => clients.chats.filter((it) => it.outcome === outcome).length;
      t.diagnostic(
        `seed ${seed}: ${of('charged')} chats acknowledged, ${of('lost')} charged by policy, ${of('refused')} refused, ${leases?.count() ?? 0} leases`,
      );
      const beside = first.map(({ wall, own }) => wall - own).sort((a, b) => a - b);
      const wall = first.map((it) => it.wall).sort((a, b) => a - b);
      const [half, last] = [beside.length >> 1, beside.length - 1];
      t.diagnostic(
        `first answer after the start: median ${wall[half]?.toFixed(0)} ms, longest ${wall[last]?.toFixed(0)} ms; beside its own processor time ${beside[half]?.toFixed(0)} and ${beside[last]?.toFixed(0)} ms`,
      );
    },
  };
}

const START_MILLISECONDS_MAX = 400;
const PARTS = ['process', 'box', ...CUTS] as const;

/** Cuts a part under load, takes over on the other box, and goes on there; so many times. */
export async function takeOvers(t: TestContext, seed: number, count: number): Promise<void> {
  const drill = await openDrill(t, seed);
  if (!drill) return;
  const { mirror, random } = drill;
  const cuts = new Map<string, number>();
  let box: Box = 0;
  for (let i = 0; i < count; i++) {
    const part = PARTS[Math.floor(random() * PARTS.length)] as (typeof PARTS)[number];
    const launched: Launched = drill.launch(box);
    const inStart = random() < 0.1;
    let load: Promise<void> | undefined;
    if (inStart) await pause(random() * START_MILLISECONDS_MAX);
    else {
      const server = await launched.serving;
      load = drill.load(server);
      await drill.aWhile(load);
      assert.equal(launched.child.exitCode, null, `it ended by itself:\n${server.output.stderr.slice(-2000)}`);
    }
    const name = `${part}${inStart ? ' at the start' : ''}`;
    cuts.set(name, (cuts.get(name) ?? 0) + 1);
    if (part === 'process' || part === 'box') launched.child.kill('SIGKILL');
    if (part === 'box') await Promise.all([mirror.cut('daemon'), mirror.cut('peer')]);
    else if (part !== 'process') await mirror.cut(part);
    // A box that has just started may not have noticed: a fence would end it.
    if (inStart) launched.child.kill('SIGKILL');
    const { code, signal } = await waitFor(
      () => `${name} ends it: ${launched.output.stderr.slice(-2000)}`,
      launched.ended,
    );
    if (!inStart)
      assert.deepEqual(
        [code, signal],
        part === 'process' || part === 'box' ? [null, 'SIGKILL'] : [6, null],
        `${name}: ${launched.output.stderr.slice(-2000)}`,
      );
    await load;
    box = await drill.takeOver(box);
  }
  await drill.judge(box);
  drill.report();
  t.diagnostic(`cuts: ${[...cuts].map(([name, times]) => `${name} ${times}`).join(', ')}`);
}

/**
 * Freezes the disk under load, so many times. The server has to end what it does outside before the disk is thawed, and to do
 * nothing afterwards: in every second try another box takes over meanwhile.
 */
export async function freezes(t: TestContext, seed: number, count: number): Promise<void> {
  const drill = await openDrill(t, seed, { stallSeconds: STALL_SECONDS });
  if (!drill) return;
  const { mirror, random, leases, calls } = drill;
  const ends = new Map<string, number>();
  let box: Box = 0;
  for (let i = 0; i < count; i++) {
    const isTakenOver = i % 2 === 1;
    const frozen: Box = box;
    const launched: Launched = drill.launch(frozen);
    const server = await launched.serving;
    const load = drill.load(server);
    await drill.aWhile(load);
    mirror.freeze();
    const end = await Promise.race([server.logged('commit.failed').then(() => 'said'), standsStill(server.pid)]);
    ends.set(end, (ends.get(end) ?? 0) + 1);
    if (end === 'said') await waitFor('all that wait have their answer', load);
    const own = (): number =>
      calls.filter(({ headers }) => headers.authorization === `Bearer ${drill.keyOf(frozen)}`).length;
    const before: { models: number; changes: number } = { models: own(), changes: leases?.proxy.changes.length ?? 0 };

    let other: { server: Serving; load: Promise<void> } | undefined;
    if (isTakenOver) {
      const next = otherBox(frozen);
      await mirror.cut('peer');
      await mirror.openAlone(next);
      box = next;
      const taking = await drill.launch(next).serving;
      other = { server: taking, load: drill.load(taking) };
      await drill.aWhile(other.load);
    }
    mirror.thaw(frozen);
    assert.deepEqual(await waitFor('the server ends', launched.ended), { code: 6, signal: null });
    await load;
    assert.equal(own(), before.models, 'it called no model');
    // One that stood still in the middle of a look may go on with that: it looks, and changes nothing (docs/decisions/0078).
    if (!other) assert.deepEqual(leases?.proxy.changes.slice(before.changes) ?? [], [], `it ${end}`);
    await other?.server.stop('SIGKILL');
    await other?.load;
    await mirror.retire(frozen);
    await mirror.retire(otherBox(frozen));
    if (!other && random() < 0.5) box = otherBox(frozen); // Both have what was confirmed.
    mirror.synchronise(box);
    await mirror.open(box);
  }
  await drill.judge(box);
  drill.report();
  t.diagnostic(
    `when its disk was frozen, the server: ${[...ends].map(([end, times]) => `${end} ${times}`).join(', ')}`,
  );
}

/**
 * Resolves when a process has stood still in the kernel for longer than a commit may take: where it reads its books, it may have
 * to wait for the frozen disk itself, and does nothing at all.
 */
function standsStill(pid: number): Promise<'stood still'> {
  let since = performance.now();
  return until('the server stands still', () => {
    if (!/^\d+ \(.*\) D /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))) since = performance.now();
    return performance.now() - since > (STALL_SECONDS + 1) * 1000 && 'stood still';
  });
}
