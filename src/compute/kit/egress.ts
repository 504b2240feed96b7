import * as v from 'valibot';
import type { LineSession } from '../../egress/line.ts';
import { EGRESS_PORT, type List, parseEntry, parseList } from '../../egress/list.ts';

/** The way out of leases, for backends whose machines have the watchdog: the setting `egress`, and what it gives a machine. */

const entry = v.pipe(
  v.string(),
  v.rawCheck(({ dataset, addIssue }) => {
    const read = dataset.typed ? parseEntry(dataset.value) : undefined;
    if (read && 'fault' in read) addIssue({ message: read.fault });
  }),
);
/** The targets that leases reach through Purser's proxy: none, every public one, or those of a list. */
export const egress = v.optional(
  v.union([v.picklist(['none', 'public']), v.array(entry)], 'must be none, public or a list of entries'),
);

/** The same setting where leases have another way out, which passes by Purser: always a fault, which names what they reach. */
export const noEgress = (reach: string) => v.optional(v.never(`cannot be set for this backend: ${reach}`));

/** Settings with a network that is not Purser's. */
type WaysOut = { network: string; egress?: unknown; offers?: { egress?: unknown }[] };

/** Refuses a network beside `egress`: whatever is in a network goes past the proxy. */
export function checkOneWayOut<S extends WaysOut>() {
  return v.check<S, string>(
    ({ network, egress, offers = [] }) =>
      network === 'none' || [egress, ...offers.map((it) => it.egress)].every((it) => it === undefined),
    'has both network and egress: leases with egress have no network. Leave one of them out',
  );
}

type EgressSetting = v.InferOutput<typeof egress>;
/** Settings with a way out for all leases, or for those of some offers. */
type Settings = { egress?: EgressSetting; offers?: readonly { id: string; egress?: EgressSetting }[] };

const entriesOf = (setting: EgressSetting): readonly string[] =>
  setting === undefined || setting === 'none' ? [] : setting === 'public' ? [setting] : setting;

const ofOffer = ({ egress, offers }: Settings, id: string | undefined): readonly string[] =>
  entriesOf(offers?.find((it) => it.id === id)?.egress ?? egress);

/** Returns the list of each offer, parsed once; of an unnamed one, that of the settings. */
export function egressLists(settings: Settings): (offer: string | undefined) => List {
  const ids = [undefined, ...(settings.offers ?? []).map(({ id }) => id)];
  const lists = new Map(ids.map((id) => [id, parseList(ofOffer(settings, id))]));
  return (offer) => lists.get(offer) ?? [];
}

const PROXY = `http://127.0.0.1:${EGRESS_PORT}`;
const LOOPBACK = 'localhost,127.0.0.1,::1';
/** The variables that point programs to the way out. Some read the names in one letter case only. */
export const PROXY_VARIABLES: Readonly<Record<string, string>> = Object.fromEntries(
  Object.entries({ http_proxy: PROXY, https_proxy: PROXY, all_proxy: PROXY, no_proxy: LOOPBACK }).flatMap(
    ([name, value]) => [
      [name, value],
      [name.toUpperCase(), value],
    ],
  ),
);

/** Returns the variables of a machine of an offer: those that point to its way out, or none. */
export const egressVariables = (settings: Settings, offer: string | undefined): Readonly<Record<string, string>> =>
  ofOffer(settings, offer).length ? PROXY_VARIABLES : {};

/** Returns the command of the program of the way out, which `watchdog` is. */
export const egressCommand = (watchdog: string): string[] => [watchdog, 'egress', String(EGRESS_PORT)];

/** Returns the streams of that program, for its line. It ends with its input. */
export function egressSession(program: LineSession): LineSession {
  program.ended.catch(() => {});
  // The stream alone decides whether it is there: a question to the engine that fails must not cut its connections.
  const ended = new Promise<void>((resolve) => program.stdout.once('close', resolve));
  return { ...program, ended };
}

const offerIds = ({ offers }: Settings) => (offers ? offers.map(({ id }) => id) : [undefined]);

/** Returns whether some leases have a way out. */
export const haveWayOut = (settings: Settings): boolean =>
  offerIds(settings).some((id) => ofOffer(settings, id).length > 0);

const SHOWN_COUNT = 5;

/** Describes, for `doctor`, what leases without a network reach. */
export function describeReach(settings: Settings): string {
  const reach = offerIds(settings).flatMap((id) => {
    const entries = ofOffer(settings, id);
    if (!entries.length) return [];
    const more = entries.length > SHOWN_COUNT ? ` and ${entries.length - SHOWN_COUNT} more` : '';
    return `${id === undefined ? '' : `${id}: `}${entries.slice(0, SHOWN_COUNT).join(', ')}${more}`;
  });
  return reach.length ? `none, but a way out through Purser (${reach.join('; ')})` : 'none: leases reach nobody';
}
