import assert from 'node:assert/strict';
import test from 'node:test';
import type { Backend, ExecOrder } from '../../src/compute/backend.ts';
import { readGuestUsage } from '../../src/compute/guest-usage.ts';

const MIB = 1024 ** 2;

/** What is read of a machine that prints this. */
const read = (output: string, gpus: number) => {
  const exec = async (_: string, { streamBytesMax }: ExecOrder) => {
    const stdout = Buffer.from(output);
    return { stdout: stdout.subarray(0, streamBytesMax), stdoutTruncated: stdout.length > streamBytesMax };
  };
  return readGuestUsage({ guest: { exec } } as unknown as Backend, 'm1', { cpu: true, gpus });
};
const said = async (text: string, sold = 2) => (await read(`purser-gpus\n${text}`, sold)).gpus;

test('what nvidia-smi says of each GPU is read, and what its driver does not tell is left out', async () => {
  for (const [text, expected] of [
    ['45, 1024\n', [{ utilizationPercent: 45, memoryBytes: 1024 * MIB }]],
    [
      '100, 81559\n0, 0\n',
      [
        { utilizationPercent: 100, memoryBytes: 81_559 * MIB },
        { utilizationPercent: 0, memoryBytes: 0 },
      ],
    ],
    ['[N/A], 15114\n', [{ memoryBytes: 15_114 * MIB }]],
    ['[Not Supported], 15114\n', [{ memoryBytes: 15_114 * MIB }]],
    ['12, [Insufficient Permissions]\n', [{ utilizationPercent: 12 }]],
    ['[GPU requires reset], [GPU requires reset]\n7, 9\n', [{}, { utilizationPercent: 7, memoryBytes: 9 * MIB }]],
    ['ERR!, 3\n', [{ memoryBytes: 3 * MIB }]],
    // A divided GPU, as a container sees it.
    ['[N/A], [Insufficient Permissions]\n', undefined],
    ['No devices were found\n', undefined],
    ['Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n', undefined],
    [
      "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it is running.\n",
      undefined,
    ],
    [
      'Unable to determine the device handle for GPU0000:05:00.0: Unknown Error\n3, 4\n',
      [{ utilizationPercent: 3, memoryBytes: 4 * MIB }],
    ],
    ['', undefined],
  ] as const)
    assert.deepEqual(await said(text), expected, text);
  assert.deepEqual(await read('purser-cpu cgroup 5 1 9\npurser-gpus\n', 2), { cpuSeconds: 5, gpus: undefined });
});

test('no answer of a hostile machine becomes a figure that cannot be', async () => {
  for (const text of [
    ...['-1, -1', 'NaN, NaN', 'Infinity, 1e9', '1e1, 2', '0x10, 0x10', '4.5, 1.5', '٣, ٣', '1,2', ' 1, 2', '1, 2, 3'],
    ...['99999999, 99999999', '[<script>], 1', '[N/A\n], 1', 'purser-gpus, 5'],
  ])
    assert.equal(await said(`${text}\n`), undefined, text);
  assert.deepEqual(await said('101, 9999999\n'), [{ memoryBytes: 9_999_999 * MIB }]);
  assert.equal(await said('1, 1\n1, 1\n1, 1\n'), undefined, 'more than were sold');
  assert.equal(await said('1, 1\n', 0), undefined);
});

test('the longest true answer fits, and of a longer one nothing is told', async () => {
  const cpu = `purser-cpu processes ${'9'.repeat(20)} ${'1'.repeat(10)} ${'1'.repeat(12)}.999999\n`;
  const line = '100, [Insufficient Permissions]\n';
  assert.equal((await read(`${cpu}purser-gpus\n${line.repeat(8)}`, 8)).gpus?.length, 8);
  assert.equal(await said('1, 1\n'.repeat(100)), undefined);
  assert.equal(await said(`1, 1\n${' '.repeat(1000)}`), undefined);
});
