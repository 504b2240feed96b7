import { createHash } from 'node:crypto';

/** The power of a virtual machine: QEMU lends it at an address of its own on the loopback of LXD's machine. */

/** Above the ports that a kernel gives to connections. */
const PORT = 63_541;

const hostOf = (tag: string): string => {
  const [a = 0, b = 0, c = 0] = createHash('sha256').update(`power ${tag}`).digest();
  return `127.${64 + (a % 128)}.${b}.${1 + (c % 254)}`;
};

/** Returns the address at which the power of this tag's machine is lent, as LXD writes it. */
export const powerAddress = (tag: string): string => `tcp:${hostOf(tag)}:${PORT}`;

/**
 * Returns the arguments of QEMU that lend the power of this tag's machine, and nothing else of it: a management controller whose
 * other side may switch the machine off (QEMU, docs/specs; hw/ipmi/ipmi_bmc_extern.c).
 */
export const powerArguments = (tag: string): string =>
  [
    `-chardev socket,id=purser-power,host=${hostOf(tag)},port=${PORT},server=on,wait=off`,
    '-device ipmi-bmc-extern,id=purser-bmc,chardev=purser-power',
    '-device pci-ipmi-kcs,bmc=purser-bmc',
  ].join(' ');
