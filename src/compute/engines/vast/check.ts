import type { CheckFinding, Offer } from '../../backend.ts';
import { finding } from '../../finding.ts';
import type { VastAnswer } from './api.ts';
import { numberOf } from './offers.ts';

/** A label that no instance of Purser has, so that the list is empty. */
const NO_LABEL = 'purser-doctor-looks';

/** Checks what the account must be able to do before a machine can be rented. Rents nothing: that would cost money. */
export async function checkVast(
  readAccount: () => Promise<VastAnswer>,
  list: (label: { eq: string }) => Promise<unknown[]>,
  offers: () => Promise<Offer[]>,
): Promise<CheckFinding[]> {
  let account: VastAnswer | undefined;
  const key = await finding('key', async () => {
    account = await explained(readAccount);
    if (account.status === 200) return 'Vast accepts it';
    if (account.status === 403) return 'Vast accepts it; it may not read the account (user_read)';
    throw new Error(complaint(account.words));
  });
  if (!key.ok) return [key]; // Any other call would fail in the same way, and use up a turn of the server's.
  return [
    key,
    await finding('credit', () => creditOf(account)),
    await finding('labels', async () => {
      await explained(() => list({ eq: NO_LABEL }));
      return 'instances can be listed by their label';
    }),
    await finding('offers', async () => {
      const { length } = await explained(offers);
      return length ? `${length} on offer` : 'nothing is on offer at the moment';
    }),
  ];
}

/** Describes the prepaid credit, and what the balance adds or owes (docs.vast.ai, show user; vast-cli shows both). */
function creditOf(account: VastAnswer | undefined): string {
  const { credit, balance } = (account?.json ?? {}) as { credit?: unknown; balance?: unknown };
  const [prepaid, owed] = [numberOf(credit), numberOf(balance)];
  if (prepaid === undefined && owed === undefined) return 'Vast does not tell it; without credit it refuses rentals';
  const usd = ((prepaid ?? 0) + (owed ?? 0)).toFixed(2);
  if (Number(usd) > 0) return `USD ${usd}`;
  throw new Error(
    `USD ${usd}: Vast refuses rentals, and stops machines that run while their disks cost money. Add credit to the account.`,
  );
}

async function explained<T>(ask: () => Promise<T>): Promise<T> {
  try {
    return await ask();
  } catch (error) {
    throw new Error(complaint((error as Error).message));
  }
}

/** Returns Vast's error, or its silence, as a sentence with the remedy. */
function complaint(words: string): string {
  const [, status] = /(?:^|: )([45]\d\d)(?: |$)/.exec(words) ?? [];
  const what = () => {
    if (status === '401') return 'Vast refuses the key. Set compute.provider_three.api_key to one that is valid';
    if (status === '403') return 'The key may not do this. Give it the permissions to read and write instances';
    if (status === '429') return 'Vast is asked too often. Wait a minute; does another program use the same account?';
    if (status !== undefined && status >= '500') return 'Vast is in trouble. Wait, and run doctor again';
    return 'Check base_url, and that this machine reaches it';
  };
  return `${words.replace(/\.$/, '')}. ${what()}.`.replace('?.', '?');
}
