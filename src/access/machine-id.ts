import { createHmac } from 'node:crypto';
import { readFileSync } from 'node:fs';

/** Systemd writes 32 hexadecimal digits. Before the first boot the file is empty or holds a placeholder. */
const MACHINE_ID = /^[0-9a-f]{32}$/;

/** Reads /etc/machine-id. Returns undefined when the file is missing or holds no id. */
export function readMachineId(path = '/etc/machine-id'): string | undefined {
  try {
    const text = readFileSync(path, 'utf8').trim();
    return MACHINE_ID.test(text) ? text : undefined;
  } catch {
    return undefined;
  }
}

/** Returns the stored form of the machine id: machine-id(5) asks applications to store only a keyed hash. */
export function machineHash(machineId: string, installationId: string): Buffer {
  return createHmac('sha256', machineId).update(installationId).digest();
}
