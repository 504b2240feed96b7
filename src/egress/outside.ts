import { Resolver } from 'node:dns/promises';
import { connect, type Socket, type TcpNetConnectOpts } from 'node:net';
import { networkInterfaces } from 'node:os';
import { createSecureContext, type SecureContext } from 'node:tls';
import { createShares } from '../base/shares.ts';
import { TLS_VERSION_MIN } from '../net/certificate.ts';
import { deadline } from '../net/deadline.ts';
import { type IpAddress, parseAddress } from './addresses.ts';

/** The world outside as the proxy uses it: name servers, connections, and the addresses of this machine. */
export type Outside = {
  /**
   * Looks up the addresses of a name at the machine's name servers. Returns none where they know none. Throws if they cannot be
   * asked.
   */
  lookUp(name: string, giveUp: AbortSignal): Promise<string[]>;
  /** Begins a connection to an address. */
  dial(address: string, port: number): Socket;
  /** Returns whether an address is one of this machine's. */
  isOwn(address: IpAddress): boolean;
  /** Returns whom connections trust that speak TLS to a server. */
  trust(): SecureContext;
};

const QUERY_MILLISECONDS = 3000;
const QUERY_TRIES = 2;
/** A socket keeps one piece each way: 64 KiB of single bytes would take a hundred times the memory. */
const ONE_PIECE = { readableHighWaterMark: 1, writableHighWaterMark: 1 };
/** The addresses of an answer, of each family, that are looked at: each is compared with this machine's. */
const ADDRESS_COUNT_MAX = 16;
const NOT_FOUND = ['ENODATA', 'ENOTFOUND'];

/** Made when it is first needed: one for each connection would take a millisecond. */
let trusted: SecureContext | undefined;

/**
 * The machine's own, and the authorities that Node trusts. Names of /etc/hosts, and short names that it would complete, are not
 * known to it.
 */
export const systemOutside: Outside = {
  async lookUp(name, giveUp) {
    const resolver = new Resolver({ timeout: QUERY_MILLISECONDS, tries: QUERY_TRIES });
    const cancel = () => resolver.cancel();
    giveUp.addEventListener('abort', cancel, { once: true });
    try {
      const answers = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)]);
      const found = answers.flatMap((it) => (it.status === 'fulfilled' ? it.value.slice(0, ADDRESS_COUNT_MAX) : []));
      const failed = answers.find((it) => it.status === 'rejected' && !NOT_FOUND.includes(it.reason.code));
      if (!found.length && failed) throw (failed as PromiseRejectedResult).reason;
      return found;
    } finally {
      giveUp.removeEventListener('abort', cancel);
    }
  },
  dial: (host, port) =>
    connect({ host, port, allowHalfOpen: true, noDelay: true, keepAlive: true, ...ONE_PIECE } as TcpNetConnectOpts),
  isOwn({ family, value }) {
    const own = Object.values(networkInterfaces()).flatMap((it) => it ?? []);
    return own.some(({ address }) => {
      const it = parseAddress(address.replace(/%.*/, ''));
      return it?.family === family && it.value === value;
    });
  },
  trust() {
    trusted ??= createSecureContext({ minVersion: TLS_VERSION_MIN });
    return trusted;
  },
};

const LOOK_UP_MILLISECONDS = 10_000;
const LOOK_UP_COUNT_MAX = { each: 8, all: 64 };

export type LookUp = (caller: string, name: string) => Promise<string[] | 'too_many'>;

/** Limits the look-ups in flight, of each lease and of all. Each has a time limit. */
export function createLookUp({ lookUp }: Pick<Outside, 'lookUp'>): LookUp {
  const shares = createShares(LOOK_UP_COUNT_MAX);
  return async (caller, name) => {
    if (!shares.tryTake(caller, 1)) return 'too_many';
    const giveUp = new AbortController();
    // It counts until the resolver is done with it, however long its caller waits.
    const looking = lookUp(name, giveUp.signal).finally(() => shares.release(caller, 1));
    looking.catch(() => {});
    return deadline(looking, LOOK_UP_MILLISECONDS, () => {
      giveUp.abort();
      throw new Error('the name servers do not answer in time');
    });
  };
}
