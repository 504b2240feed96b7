import * as v from 'valibot';
import { file } from '../../kit/fields.ts';

/** Settings of the address of LXD or Incus: `socket`, and `tls` for https. */

const UNIX = /^unix:\/\/(\/.+)$/;
const HTTPS = /^https:\/\/[^/?#@]+$/;

/** The settings of an address. */
export const lxdAddress = {
  socket: v.optional(
    v.pipe(
      v.string(),
      v.check(
        (socket) => UNIX.test(socket) || HTTPS.test(socket),
        'must be unix:///path of the socket of LXD or Incus, or https://host:8443',
      ),
    ),
    'unix:///var/lib/lxd/unix.socket',
  ),
  /** For https: the server's own certificate, and the certificate and key that it trusts. Paths of PEM files. */
  tls: v.optional(v.strictObject({ server: file, cert: file, key: file })),
};

export type LxdAddress = { socket: string; tls?: { server: string; cert: string; key: string } | undefined };

/** Checks the settings of the address against each other. */
export const checkLxdAddress = <T extends LxdAddress>() =>
  v.rawCheck<T>(({ dataset, addIssue }) => {
    if (!dataset.typed) return;
    const input: T = dataset.value;
    const isRemote = HTTPS.test(input.socket);
    if (isRemote === (input.tls !== undefined)) return;
    const message = isRemote ? 'is required for an https:// address' : 'is for an https:// address';
    addIssue({
      message,
      path: [{ type: 'object', origin: 'value', input: { ...input }, key: 'tls', value: input.tls }],
    });
  });

/** Returns the origin of the requests, for a pool of connections. */
export const originOf = ({ socket }: LxdAddress) => (HTTPS.test(socket) ? socket : 'http://lxd');

/** Returns the path of the unix socket; undefined for an https address. */
export const socketPathOf = ({ socket }: LxdAddress): string | undefined => UNIX.exec(socket)?.[1];
