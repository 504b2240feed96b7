import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import test from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { randomFrom, SEED } from '../helper/random.ts';
import { CUTS, identify, imageOf, isWritten, LUCKS, layDown } from './cuts.ts';
import { Disk } from './disk.ts';
import { readTrace, straced } from './trace.ts';

/** What is left of a restore, or of a rotation, when the power goes: the books of before or of after, and both start. */
for (const command of ['restore', 'master-key rotate'] as const)
  test(`a power cut during ${command} leaves the books of before or of after (seed ${SEED})`, async (t) => {
    if (!hasComponent(t, 'strace')) return;
    const random = randomFrom(SEED);
    const directory = mkdtempSync(join(tmpdir(), 'purser-power-'));
    const plain = installation(t, { directory });
    const server = await plain.serve();
    const { accounts } = await plain.json('account', 'list');
    const credit = () => plain.json('account', 'credit', accounts[0].id, '1000c');
    const wallet = await (async () => {
      await credit();
      return plain.json('wallet', 'create', '--account', accounts[0].id, '--name', 'agent', '--budget-cents', '100');
    })();
    const backup = join(directory, 'backup.db');
    await plain.json('backup', backup);
    for (let i = 0; i < 20; i++) await credit();
    server.kill('SIGKILL'); // Its log lies beside the database.
    await server.ended;

    const before = imageOf(directory);
    const old = await identify(layDown(t, directory, before, random));
    const trace = join(mkdtempSync(join(tmpdir(), 'purser-trace-')), 'trace');
    t.after(() => rmSync(dirname(trace), { recursive: true, force: true }));
    const traced = installation(t, { directory, command: [...straced(trace), EXECUTABLE] });
    const launched = traced.launch(...command.split(' '), ...(command === 'restore' ? [backup] : []));
    assert.equal((await launched.ended).code, 0, launched.output.stderr);
    await isWritten(trace, launched.child.pid, 'exited with 0');
    const steps = readTrace(trace, (path) => path.startsWith(directory));
    const fresh = await identify(layDown(t, directory, imageOf(directory), random));
    const state = ({ id, seq, epoch }: typeof old) => JSON.stringify({ id, seq, epoch });
    if (command === 'restore') assert.notEqual(state(old), state(fresh));

    const disk = new Disk(directory, before);
    const own = steps.flatMap((it, at) => (it.kind === 'open' && !it.path.startsWith(directory) ? [] : [at]));
    const cuts = new Set(Array.from({ length: CUTS / 4 }, () => own[Math.floor(random() * own.length)] as number));
    cuts.add(steps.length - 1);
    const seen = { before: 0, after: 0 };
    for (const [at, step] of steps.entries()) {
      disk.take(step);
      if (!cuts.has(at)) continue;
      for (const luck of LUCKS) {
        const left = layDown(t, directory, disk.cut(luck, random), random);
        const found = await identify(left).catch((error: Error) => {
          throw new Error(`step ${at}, ${luck}: ${error.message}`);
        });
        assert.deepEqual([found.fault, found.problems], [undefined, []], `step ${at} of ${steps.length}, ${luck}`);
        assert([state(old), state(fresh)].includes(state(found)), `step ${at}, ${luck}: ${state(found)}`);
        const cli = installation(t, { directory: left, settings: null });
        assert.equal((await cli.json('wallet', 'token', wallet.id)).agent_token, wallet.agent_token);
        rmSync(left, { recursive: true, force: true });
        seen[state(found) === state(fresh) ? 'after' : 'before']++;
      }
    }
    // A rotation posts no entry: both are the same books, and the token is what tells that the key fits.
    const which = state(old) === state(fresh) ? '' : `, ${seen.before} as before, ${seen.after} as after`;
    t.diagnostic(`${command}: ${cuts.size * LUCKS.length} disks after a power cut, all of them start${which}`);
  });
