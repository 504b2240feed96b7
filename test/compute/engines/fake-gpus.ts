import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const CDI_DIRECTORY = '/var/run/cdi';
/** Lists the devices that were put into the container, or their use. Like the real one, it fails if there is none. */
const nvidiaSmi = (use: string) => `#!/bin/sh
n=0
for gpu in /run/fake-gpus/*; do
  [ -e "$gpu" ] || { echo 'No devices were found' >&2; exit 6; }
  case $1 in
    -L) echo "GPU $n: Fake H100 (UUID: \${gpu##*/})" ;;
    --query-gpu=utilization.gpu,memory.used) ${use} ;;
  esac
  n=$((n + 1))
done
`;

/** GPUs for Podman on a machine without any: a CDI specification of NVIDIA's kind, with unique device names. */
export type FakeGpus = {
  /** Devices. Each is listed by the `nvidia-smi` of its container. */
  names: string[];
  /** A device that the specification names but that never appears in the container. */
  absent: string;
  remove(): void;
};

/** Makes them. `use` prints that of GPU `$n`, in shell. */
export function openFakeGpus(count: number, use = 'echo "$((n + 40)), 1024"'): FakeGpus {
  const directory = mkdtempSync(join(tmpdir(), 'purser-gpus-'));
  const id = randomBytes(6).toString('hex');
  const names = Array.from({ length: count }, (_, index) => `GPU-${id}-${index}`);
  const absent = `GPU-${id}-absent`;
  const script = join(directory, 'nvidia-smi');
  writeFileSync(script, nvidiaSmi(use), { mode: 0o755 });
  const bind = (hostPath: string, containerPath: string) => ({ hostPath, containerPath, options: ['bind', 'ro'] });
  const devices = names.map((name) => {
    writeFileSync(join(directory, name), '');
    return { name, containerEdits: { mounts: [bind(join(directory, name), `/run/fake-gpus/${name}`)] } };
  });
  const specification = {
    cdiVersion: '0.3.0',
    kind: 'nvidia.com/gpu',
    devices: [...devices, { name: absent, containerEdits: { env: ['FAKE_GPU=absent'] } }],
    containerEdits: { mounts: [bind(script, '/bin/nvidia-smi')] },
  };
  const made = mkdirSync(CDI_DIRECTORY, { recursive: true });
  const file = join(CDI_DIRECTORY, `purser-test-${id}.json`);
  writeFileSync(file, JSON.stringify(specification));
  return {
    names,
    absent,
    remove() {
      rmSync(file);
      if (made !== undefined) rmSync(made, { recursive: true });
      rmSync(directory, { recursive: true });
    },
  };
}
