/**
 * Programs that make a subvolume of btrfs as a tenant could, by every way into the kernel. They are built here, of a few
 * instructions of x86-64: the images of the tests have neither a compiler nor `btrfs`.
 */

/** The requests that make a subvolume, or a snapshot of one (ioctl_btrfs(2)). */
const REQUESTS = {
  SUBVOL_CREATE: 0x5000940en,
  SUBVOL_CREATE_V2: 0x50009418n,
  SNAP_CREATE: 0x50009401n,
  SNAP_CREATE_V2: 0x50009417n,
};
/** The numbers of `ioctl` among the system calls of 64 bits, of x32, which many kernels lack, and of 32 bits. */
const CALLS = { syscall: 16, x32: 0x40000000 + 514, int80: 54 };
/** The kernel reads the lower 32 bits of a request. */
const HIGH_BITS = [0n, 1n << 32n, 0xffff_ffff_0000_0000n];

type Request = keyof typeof REQUESTS;
/** A way of asking for one. */
type Asking = { request: Request; call: keyof typeof CALLS; highBits: bigint };

/** Every way of asking. The first of them makes a subvolume of which the others take snapshots. */
export const ASKINGS: Asking[] = (Object.keys(REQUESTS) as Request[]).flatMap((request) =>
  (Object.keys(CALLS) as (keyof typeof CALLS)[]).flatMap((call) =>
    HIGH_BITS.map((highBits) => ({ request, call, highBits })),
  ),
);

/** The exit codes of the programs: errors of the kernel (errno(3)). */
export const MADE = 0;
export const REFUSED = 1;
export const NO_SUCH_REQUEST = 25;
const NO_SUCH_CALL = 38;
/** What a shell says of a program that a signal ended: a kernel without system calls of 32 bits answers them by SIGSEGV. */
const NO_SUCH_WAY = 128 + 11;

const BASE = 0x400000;
const HEADER_BYTES = 120;
const ARGUMENT_BYTES = 4096;
/** The places of the name in both versions of the argument. */
const NAME_AT = { first: 8, second: 56 };
/** The name of the first one that is made in a directory. */
export const FIRST = 'made';

const u16 = (value: number) => Buffer.from([value & 0xff, value >> 8]);
const u32 = (value: number) => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value >>> 0);
  return bytes;
};
const u64 = (value: bigint) => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt.asUintN(64, value));
  return bytes;
};
const code = (...parts: (number | Buffer)[]) =>
  Buffer.concat(parts.map((it) => (typeof it === 'number' ? Buffer.of(it) : it)));

/** Returns a static program that makes a subvolume of that name in a directory, and ends with the kernel's error, or with 0. */
function programOf({ request, call, highBits }: Asking, directory: string, name: string): Buffer {
  const number = u64(highBits | REQUESTS[request]);
  const source = request.startsWith('SNAP') ? `${directory}/${FIRST}` : undefined;
  const instructions = (data: number): Buffer => {
    const places = { directory: data + ARGUMENT_BYTES, source: data + ARGUMENT_BYTES + directory.length + 1 };
    const open = (path: number) => code(0xbf, u32(path), 0x31, 0xf6, 0xb8, u32(2), 0x0f, 0x05); // edi = path, esi = 0, open
    return code(
      // The descriptor of the source is the first member of the argument.
      ...(source === undefined ? [] : [open(places.source), 0x89, 0x04, 0x25, u32(data)]),
      open(places.directory),
      ...(call === 'int80'
        ? [0x89, 0xc3, 0x48, 0xb9, number, 0xba, u32(data), 0xb8, u32(CALLS[call]), 0xcd, 0x80] // ebx, rcx, edx, eax
        : [0x89, 0xc7, 0x48, 0xbe, number, 0xba, u32(data), 0xb8, u32(CALLS[call]), 0x0f, 0x05]), // edi, rsi, edx, eax
      ...[0xf7, 0xd8, 0x89, 0xc7, 0xb8, u32(60), 0x0f, 0x05], // exit(-eax)
    );
  };
  const data = BASE + HEADER_BYTES + instructions(0).length;
  const argument = Buffer.alloc(ARGUMENT_BYTES);
  argument.write(name, request.endsWith('_V2') ? NAME_AT.second : NAME_AT.first);
  const content = code(instructions(data), argument, Buffer.from(`${directory}\0${source ?? ''}\0`));
  const size = u64(BigInt(HEADER_BYTES + content.length));
  return code(
    // The header of an ELF file, and of its one segment (elf(5)), which can be written and executed.
    ...[Buffer.from('\x7fELF\x02\x01\x01'.padEnd(16, '\0'), 'latin1'), u16(2), u16(62), u32(1)],
    ...[u64(BigInt(BASE + HEADER_BYTES)), u64(64n), u64(0n), u32(0), u16(64), u16(56), u16(1), u16(0), u16(0), u16(0)],
    ...[u32(1), u32(7), u64(0n), u64(BigInt(BASE)), u64(BigInt(BASE)), size, size, u64(0x1000n)],
    content,
  );
}

/** Returns whether the kernel lacks the way by which that was asked, as the exit code of its program says. */
export const isLacking = ({ call }: Asking, exitCode: number | undefined): boolean =>
  (call === 'x32' && exitCode === NO_SUCH_CALL) || (call === 'int80' && exitCode === NO_SUCH_WAY);

/** Asks for a subvolume in a directory in several ways, by a shell that has what busybox has. Returns the exit code of each. */
export async function askForSubvolumes(
  directory: string,
  sh: (command: string) => Promise<string>,
  askings = ASKINGS,
): Promise<number[]> {
  const codes: number[] = [];
  await sh(`mkdir -p ${directory}`);
  for (const [at, asking] of askings.entries()) {
    const program = programOf(asking, directory, at === 0 ? FIRST : `${FIRST}${at}`).toString('base64');
    const path = `${directory}/program`;
    const said = await sh(`echo ${program} | base64 -d >${path}; chmod +x ${path}; ${path}; echo $?`);
    codes.push(Number(/^\d+$/m.exec(said)?.[0])); // A shell also says which signal ended it.
  }
  return codes;
}
