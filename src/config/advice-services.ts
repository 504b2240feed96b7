import type { Config } from './config.ts';
import { isLive } from './services.ts';

const isOpen = (address: string) => {
  const { protocol, hostname } = new URL(address);
  return protocol === 'http:' && !/^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname);
};

/** Notes for the operator on the settings of identity, billing, transfer, events and spans. They are not faults. */
export function adviceOnServices({ identity, billing, transfer, events, opentelemetry }: Config): string[] {
  const notes: string[] = [];
  if (identity && isOpen(identity.issuer))
    notes.push('identity.issuer: over http:// anybody on the network path can sign in as any user.');
  if (billing && !isLive(billing.stripe))
    notes.push('billing.stripe: the key is of test mode: test cards pay, and what they pay is credited.');
  if (transfer && isOpen(transfer.endpoint))
    notes.push('transfer.endpoint: over http:// objects and their signed addresses can be read on the network path.');
  if (opentelemetry && isOpen(opentelemetry.endpoint))
    notes.push('opentelemetry.endpoint: over http:// spans and their headers can be read on the network path.');
  for (const { name, url, types } of events.receivers) {
    if (isOpen(url.reveal()))
      notes.push(`events.receivers: over http:// what ${name} is told can be read on the network path.`);
    if (types?.includes('account.low') && events.account_low_cents === undefined)
      notes.push(
        `events.account_low_cents is not set: ${name} is told account.low only when an account cannot pay a refill.`,
      );
  }
  return notes;
}
