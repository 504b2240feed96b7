import type { Config } from './config.ts';

const isOpen = (address: string) => {
  const { protocol, hostname } = new URL(address);
  return protocol === 'http:' && !/^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname);
};

/** What an operator should know of the settings for other people's services: words, not faults. */
export function adviceOnOutside({ identity, billing, transfer }: Config): string[] {
  const notes: string[] = [];
  if (identity && isOpen(identity.issuer))
    notes.push('identity.issuer: over http:// whoever is on the way can sign in as anybody.');
  if (billing && !billing.stripe.livemode)
    notes.push('billing.stripe: the key is of test mode: test cards pay, and what they pay is credited.');
  if (transfer && isOpen(transfer.endpoint))
    notes.push('transfer.endpoint: over http:// objects and their signed addresses can be read on the way.');
  return notes;
}
