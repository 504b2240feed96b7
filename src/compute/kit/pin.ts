import type { Algorithms } from 'ssh2';

const RSA_SIGNATURES = ['rsa-sha2-512', 'rsa-sha2-256'];

/** A host key as an operator wrote it down, for one connection. */
type PinnedHostKey = {
  /** Asks for the pinned kind of key: a host with several might show another. */
  algorithms: Pick<Algorithms, 'serverHostKey'>;
  isHost(key: Buffer): boolean;
  /** Returns whether `isHost` has seen another key. */
  isOther(): boolean;
};

export function pinHostKey(pinned: string): PinnedHostKey {
  const [keyType = '', keyBlob = ''] = pinned.split(' ');
  let isOther = false;
  return {
    algorithms: { serverHostKey: (keyType === 'ssh-rsa' ? RSA_SIGNATURES : [keyType]) as never },
    isHost(key) {
      isOther = key.toString('base64') !== keyBlob;
      return !isOther;
    },
    isOther: () => isOther,
  };
}
