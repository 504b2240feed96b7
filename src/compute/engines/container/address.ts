import * as v from 'valibot';
import { file, hostKey } from '../../kit/fields.ts';

/** Settings of the address of a container engine: `socket`, and what TLS and SSH need besides. */

export type EngineAddress =
  | { kind: 'unix'; path: string }
  | { kind: 'tcp'; host: string; port: number }
  | { kind: 'ssh'; user: string; host: string; port: number; path: string };

const HOST = String.raw`(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))`;
const UNIX = /^unix:\/\/(\/.+)$/;
const TCP = new RegExp(`^tcp://${HOST}:(\\d{1,5})$`);
const SSH = new RegExp(`^ssh://([A-Za-z0-9_][\\w.-]*)@${HOST}(?::(\\d{1,5}))?(/[^?#]*)?$`);
const SSH_PORT = 22;
const DOCKER_SOCKET = '/var/run/docker.sock';
const isPort = (port: number) => port >= 1 && port <= 65_535;

/** The address that `socket` names, or undefined if it names none. An IPv6 host is kept without its brackets. */
export function parseEngineAddress(socket: string): EngineAddress | undefined {
  const [, unixPath] = UNIX.exec(socket) ?? [];
  if (unixPath !== undefined) return { kind: 'unix', path: unixPath };
  const tcp = TCP.exec(socket);
  if (tcp) {
    const [, bracketed, plain, port] = tcp;
    const at = { host: (bracketed ?? plain) as string, port: Number(port) };
    return isPort(at.port) ? { kind: 'tcp', ...at } : undefined;
  }
  const ssh = SSH.exec(socket);
  if (!ssh) return undefined;
  const [, user = '', bracketed, plain, port = SSH_PORT, path] = ssh;
  const at = { user, host: (bracketed ?? plain) as string, port: Number(port) };
  return isPort(at.port) ? { kind: 'ssh', ...at, path: path && path !== '/' ? path : DOCKER_SOCKET } : undefined;
}

const isLoopback = (host: string) => /^(localhost|127(\.\d{1,3}){3}|::1)$/.test(host);
/** Returns whether the address is plain TCP to another machine. */
const isOpen = (at: EngineAddress | undefined) => at?.kind === 'tcp' && !isLoopback(at.host);

/** The settings of an engine's address. */
export const engineAddress = {
  socket: v.optional(
    v.pipe(
      v.string(),
      v.check(
        (socket) => parseEngineAddress(socket) !== undefined,
        'must be unix:///path of the engine’s socket, tcp://host:port, or ssh://user@host[:port][/path of its socket]',
      ),
    ),
    `unix://${DOCKER_SOCKET}`,
  ),
  /** For tcp: the engine's authority, and the certificate and key that Purser shows it. Paths of PEM files. */
  tls: v.optional(v.strictObject({ ca: file, cert: file, key: file })),
  /** Accepts plain TCP to another machine. */
  insecure: v.optional(v.boolean()),
  /** For ssh: the host's public key, and the private key to log in with. */
  host_key: v.optional(hostKey),
  identity_file: v.optional(file),
};

export type EngineSettings = {
  [K in keyof typeof engineAddress]?: v.InferOutput<(typeof engineAddress)[K]> | undefined;
} & { socket: string };
type AddressFault = [setting: keyof EngineSettings, what: string];

/** Returns the settings that do not fit the kind of address, each fault at its setting. */
function faultsOf({ socket, tls, insecure, host_key, identity_file }: EngineSettings): AddressFault[] {
  const at = parseEngineAddress(socket);
  if (!at) return []; // The schema of `socket` has already reported it.
  const faults: AddressFault[] = [];
  if (at.kind === 'tcp') {
    if (isOpen(at) && !tls && !insecure)
      faults.push([
        'socket',
        'is plain TCP to another machine: whoever can connect is root there. Set tls, or insecure: true',
      ]);
    if (tls && insecure) faults.push(['insecure', 'has no use beside tls']);
  } else {
    if (tls) faults.push(['tls', 'is for a tcp:// socket']);
    if (insecure !== undefined) faults.push(['insecure', 'is for a tcp:// socket']);
  }
  for (const [setting, value] of [
    ['host_key', host_key],
    ['identity_file', identity_file],
  ] as const) {
    if (at.kind === 'ssh' && value === undefined) faults.push([setting, 'is required for an ssh:// socket']);
    if (at.kind !== 'ssh' && value !== undefined) faults.push([setting, 'is for an ssh:// socket']);
  }
  return faults;
}

/** Checks the settings of the engine's address against each other. */
export const checkEngineAddress = <T extends EngineSettings>() =>
  v.rawCheck<T>(({ dataset, addIssue }) => {
    if (!dataset.typed) return;
    const input: T = dataset.value;
    for (const [key, message] of faultsOf(input))
      addIssue({ message, path: [{ type: 'object', origin: 'value', input: { ...input }, key, value: input[key] }] });
  });

/** Notes for the operator on an engine's address. */
export function notesOnAddress({ socket, tls }: EngineSettings): string[] {
  if (parseEngineAddress(socket)?.kind !== 'tcp' || tls) return [];
  return [
    `${socket} is plain TCP: whoever can connect to it rules the engine and its machine, and can read all leases`,
  ];
}
