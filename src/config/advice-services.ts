import type { Config } from './config.ts';

const isOpen = (address: string) => {
  const { protocol, hostname } = new URL(address);
  return protocol === 'http:' && !/^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname);
};

/** Notes for the operator on the settings of identity, billing and transfer. They are not faults. */
export function adviceOnOutside({ identity, billing, transfer }: Config): string[] {
  const notes: string[] = [];
  if (identity && isOpen(identity.issuer))
    notes.push('identity.issuer: over http:// anybody on the network path can sign in as any user.');
  if (billing && !billing.stripe.livemode)
    notes.push('billing.stripe: the key is of test mode: test cards pay, and what they pay is credited.');
  if (transfer && isOpen(transfer.endpoint))
    notes.push('transfer.endpoint: over http:// objects and their signed addresses can be read on the network path.');
  return notes;
}
