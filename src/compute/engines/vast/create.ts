import type { Created, MachineQuote, SpecThree } from '../../backend.ts';
import { refused } from '../../kit/created.ts';
import { type VastAnswer, type VastApi, VastUnreachable } from './api.ts';
import { idOf } from './offers.ts';
import { onstart } from './onstart.ts';
import type { Rentals } from './rentals.ts';
import type { VastSettings } from './settings.ts';

/** Statuses that refuse a create for certain; 404 and 410 only with `no_such_ask`. Any other leaves it unknown. */
const REFUSED = new Set([400, 401, 403, 422]);
const MAYBE_TAKEN = new Set([404, 410]);

type RentalOrder = { tag: string; quote: MachineQuote; deadline: number };

/** Creates the call that rents an offer and makes its machine. */
export function createCreate(settings: VastSettings, api: VastApi, rentals: Rentals, now: () => number) {
  /** Offers being bought at this moment. Vast may sell one offer twice and let the second buyer fail silently. */
  const buying = new Set<string>();

  async function buy({ tag, quote, deadline }: RentalOrder): Promise<Created> {
    const { offer_id: offerId, disk_gb: diskGb } = quote.spec as SpecThree;
    let answer: VastAnswer;
    try {
      answer = await api.call('create', 'PUT', `/api/v0/asks/${offerId}/`, {
        client_id: 'me',
        image: settings.image,
        disk: diskGb,
        label: tag,
        runtype: settings.runtype,
        onstart: onstart(settings.base_url, deadline),
        ...(settings.runtype === 'ssh_direct' ? { env: { '-p 22:22': '1' } } : {}),
        cancel_unavail: true,
        target_state: 'running',
      });
    } catch (error) {
      if (!(error instanceof VastUnreachable) || error.sent)
        return { kind: 'unknown', reason: (error as Error).message };
      return refused('The provider cannot be reached', error.message);
    }
    // Checked first, whatever the status: a contract may come with an error. The machine is then found to have ended.
    const ref = idOf((answer.json as { new_contract?: unknown } | undefined)?.new_contract);
    if (ref !== undefined) {
      // With the other tag's record, this tenant would get the key to that machine.
      if ((rentals.record(ref)?.tag ?? tag) !== tag)
        return { kind: 'unknown', reason: `vast answered the create with the machine of another lease, ${ref}` };
      rentals.keep(ref, tag, { madeAt: now(), seen: false, deadline });
      return { kind: 'created', ref };
    }
    const { status, words } = answer;
    if (REFUSED.has(status)) return refused('The provider refused the machine', words);
    if (MAYBE_TAKEN.has(status) && /no_such_ask/.test(words))
      return refused('Somebody else has just rented this offer', undefined, 'capacity_unavailable');
    return { kind: 'unknown', reason: `vast answered the create with ${words}` };
  }

  return async (order: RentalOrder): Promise<Created> => {
    const { offer_id: offerId } = order.quote.spec as SpecThree;
    if (buying.has(offerId))
      return {
        kind: 'refused',
        code: 'capacity_unavailable',
        reason: 'Somebody else is renting this offer at this moment. Nothing was charged.',
      };
    buying.add(offerId);
    try {
      return await buy(order);
    } finally {
      buying.delete(offerId);
    }
  };
}
