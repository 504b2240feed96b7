import { createHmac } from 'node:crypto';
import { readFileSync } from 'node:fs';

/** Systemd writes 32 hexadecimal digits; a machine that has not started once has nothing there, or a word. */
const MACHINE_ID = /^[0-9a-f]{32}$/;

/** What /etc/machine-id says, or undefined where there is no such file. */
export function readMachineId(path = '/etc/machine-id'): string | undefined {
  try {
    const text = readFileSync(path, 'utf8').trim();
    return MACHINE_ID.test(text) ? text : undefined;
  } catch {
    return undefined;
  }
}

/** What is kept of it: the id itself is confidential, and is to be hashed with a key of the application (machine-id(5)). */
export function machineHash(machineId: string, installationId: string): Buffer {
  return createHmac('sha256', machineId).update(installationId).digest();
}
