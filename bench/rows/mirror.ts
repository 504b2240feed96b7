import { join } from 'node:path';
import { type Mirror, openMirror, otherBox } from '../../test/standby/mirror.ts';
import type { Bench } from '../bench.ts';
import { generate, UNTIL_BROKEN } from '../generate.ts';
import { chatBody, chatLoad } from '../loads.ts';
import { sleep } from '../process.ts';
import { type Installation, install, openWallets, startPurser } from '../purser.ts';
import { interleave, median, range, times } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const WALLETS = 1000;
const TAKE_OVERS = 5;
const LOAD_MILLISECONDS = 1000;

/** Measures chats on a disk that replicates itself, beside the same disk alone, and how long a takeover takes. */
export async function mirror(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const stage = {
    after: (undo: (() => unknown) | undefined) => open.defer(async () => void (await undo?.())),
    skip: () => {},
  };
  const rig = async () => {
    const opened = await openMirror(stage as Parameters<typeof openMirror>[0], {
      parent: bench.directory,
      isFlushed: true,
    });
    if (!opened) throw new Error('this machine has no qemu-storage-daemon, FUSE or loop devices');
    return opened;
  };
  const [mirrored, alone] = [await rig(), await rig()];
  await mirrored.open(0);
  await alone.openAlone(0);
  const on = async (disk: Mirror) => {
    const installation = await install(join(disk.directoryOf(0), 'data'), bench.upstream.port);
    const purser = open.adopt(await startPurser(installation), (it) => it.stop('SIGKILL'));
    return { installation, purser, tokens: await openWallets(installation, WALLETS) };
  };
  const two = await on(mirrored);
  const one = await on(alone);

  const lines: Line[] = [];
  for (const connections of [64, 1]) {
    const { both, single } = await interleave(
      {
        both: chatLoad(two.purser, two.tokens, connections),
        single: chatLoad(one.purser, one.tokens, connections),
      },
      bench,
    );
    lines.push({
      what: `chat on a mirror of two disks, ${connections} connection${connections > 1 ? 's' : ''}: requests/s × one disk`,
      goal: '',
      measured: times(both, single, 'perSecond'),
      beside: `${figure(both.perSecond)}/s and ${figure(single.perSecond)}/s; p50 ${figure(both.p50)} and ${figure(single.p50)} ms`,
    });
  }
  await two.purser.stop('SIGKILL');
  const seconds = await takeOvers(mirrored, bench, two);
  lines.push({
    what: 'from the cut of a box under load to the first answer of the other',
    goal: '≤ 3 s',
    measured: `${figure(median(seconds))} s`,
    beside: `${seconds.length} takeovers, ${range(seconds)} s: the mount, the start and a chat`,
  });
  return lines;
}

type Site = { installation: Installation; tokens: readonly string[] };

/** Returns the seconds of each takeover. The other box decides at once: what finds that a box is lost is not counted. */
async function takeOvers(disk: Mirror, { directory }: Bench, { installation, tokens }: Site): Promise<number[]> {
  const log = join(directory, 'taken-over.log');
  const on = (box: 0 | 1) => ({ ...installation, directory: join(disk.directoryOf(box), 'data'), log });
  const seconds: number[] = [];
  let box: 0 | 1 = 0;
  for (let i = 0; i < TAKE_OVERS; i++) {
    const purser = await startPurser(on(box));
    const load = generate({ ...chatLoad(purser, tokens), count: UNTIL_BROKEN }).catch(() => {});
    await sleep(LOAD_MILLISECONDS);
    const from = performance.now();
    const to = otherBox(box);
    await Promise.all([purser.stop('SIGKILL'), disk.cut('daemon'), disk.cut('peer')]);
    await disk.openAlone(to);
    const next = await startPurser(on(to));
    await chat(next.port, tokens[0] as string);
    seconds.push((performance.now() - from) / 1000);
    await load;
    await next.stop();
    await disk.retire(box);
    await disk.retire(to);
    disk.synchronise(to);
    await disk.open(to);
    box = to;
  }
  return seconds;
}

async function chat(port: number, token: string): Promise<void> {
  const answer = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      'idempotency-key': `${Math.random()}`,
    },
    body: chatBody(),
  });
  if (answer.status !== 200) throw new Error(`the first answer is ${answer.status} ${await answer.text()}`);
  await answer.arrayBuffer();
}
