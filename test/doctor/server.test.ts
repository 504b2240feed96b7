import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { openBackend } from '../../src/compute/open.ts';
import { listBackends } from '../../src/compute/settings.ts';
import { DEMO_COMPUTE } from '../../src/demo/providers.ts';
import { judgeBackups } from '../../src/doctor/backups.ts';
import { examineSlots } from '../../src/doctor/compute.ts';
import { judgeLimits } from '../../src/doctor/server.ts';
import { openFilesMax } from '../../src/net/listen.ts';
import { openMemoryServer } from '../lease/leases.ts';

const NONE = { openFiles: null, memoryBytes: null, cpuSeconds: null };

test('limits are named, and those that are too low with what to do', () => {
  assert.equal(judgeLimits(NONE), 'any number of open files, all memory');
  assert.equal(
    judgeLimits({ ...NONE, openFiles: 65_536, memoryBytes: 2 ** 30 }),
    '65536 open files, 1024 MiB of memory',
  );
  assert.match(judgeLimits({ ...NONE, openFiles: 1024 }), /^Warning: 1024 open files, .*LimitNOFILE/);
  assert.match(judgeLimits({ ...NONE, memoryBytes: 2 ** 27 }), /^Warning: .*128 MiB of memory\. .* give it 256 MiB/);
  assert.match(judgeLimits({ ...NONE, cpuSeconds: 60 }), /^Warning: .*60 s of processor time\. .*LimitCPU/);
});

test('a server says where it may write, what its backends reach, and its limits', async (t) => {
  const directory = join(mkdtempSync(join(tmpdir(), 'purser-examined-')), 'backups');
  t.after(() => rmSync(join(directory, '..'), { recursive: true }));
  const purser = await openMemoryServer(t, { settings: { backup: { every: '6h', directory } } });
  purser.backend.doctor = {
    trial: 'costs_money',
    check: async () => [{ name: 'engine', ok: false, detail: 'It is gone. Start it.' }],
  };
  const found = await purser.run('server.examine', {});
  assert.deepEqual(found.backup, { directory, fault: 'ENOENT' });
  assert.deepEqual(found.backends[0], {
    slot: 'provider_one',
    name: purser.backend.name,
    digest: found.backends[0]?.digest,
    findings: [{ name: 'engine', ok: false, detail: 'It is gone. Start it.' }],
  });
  assert.equal(found.limits.openFiles, openFilesMax());
  mkdirSync(directory);
  assert.deepEqual((await purser.run('server.examine', {})).backup, { directory, fault: null });

  const backup = { every: 60, keep: 1, directory };
  assert.throws(
    () => judgeBackups(backup, 'inst_1', 0, { backup: { directory, fault: 'EROFS' } }),
    /^Error: The running server may not write into .*backups \(EROFS\), so no backup is made\. .*ReadWritePaths=.*backups /,
  );
  const before = { backup: { directory: '/of/before', fault: 'EROFS' } };
  assert.match(judgeBackups(backup, 'inst_1', 0, before), /^Warning: there is none/, 'the server does not know it yet');
});

test('what a server says of a backend counts where it runs with the settings of the file, and nowhere else', async (t) => {
  const dataDirectory = mkdtempSync(join(tmpdir(), 'purser-examined-'));
  t.after(() => rmSync(dataDirectory, { recursive: true }));
  const compute = { provider_one: DEMO_COMPUTE.provider_one };
  const [placed] = listBackends(compute);
  assert(placed);
  const { digest, backend } = await openBackend(placed, { dataDirectory, prefix: 'purser-', now: () => 0 });
  await backend.close();
  const findings = [{ name: 'engine', ok: false, detail: 'It is gone.' }];
  const detailsWith = async (of: string) => {
    const server = { backends: [{ slot: placed.slot, name: placed.name, digest: of, findings }] } as never;
    const found = await examineSlots({ dataDirectory, compute } as never, undefined, () => 0, server);
    return found.map((it) => it.detail);
  };
  assert((await detailsWith(digest)).includes('It is gone.'));
  assert(!(await detailsWith('of other settings')).includes('It is gone.'));
});
