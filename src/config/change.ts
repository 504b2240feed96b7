import { Refusal } from '../base/refusal.ts';
import { isSame } from '../base/secret.ts';
import type { Config } from './config.ts';
import { SETTING_NAMES } from './schema.ts';

/** Reads the settings again and applies them, all or nothing. Throws `conflict` with the reason why nothing was changed. */
export type Reload = () => Promise<Change>;

/** The settings that a reload changes, by name. */
export type Change = { models: ListChange; upstreams: ListChange; receivers: ListChange; settings: string[] };
type ListChange = { added: string[]; removed: string[]; changed: string[] };

/** Settings that a reload changes, beside models, upstreams and receivers of events. */
const CHANGEABLE = [
  'limits',
  'backup',
  'close_wait_seconds',
  'drain_seconds',
  'child_wallets',
  'keep',
  'trusted_proxies',
  'log_level',
  'tls',
  'upgrade',
  'accounts',
] as const satisfies (keyof Config)[];

/** Settings that only a start changes: all others. */
const FIXED = SETTING_NAMES.filter((name) => ![...CHANGEABLE, 'router', 'events'].includes(name));

/** Settings of the router beside its lists. */
const ROUTER = ['uncertain', 'on_cancel', 'cancel_grace_seconds'] as const;

/** Returns the settings that differ. Throws `conflict` with the names of those that only a start changes, if there are any. */
export function changeOf(before: Config, after: Config): Change {
  const isOther = (read: (it: Config) => unknown) => !isSame(read(before), read(after));
  const fixed: string[] = FIXED.filter((name) => isOther((it) => it[name]));
  if (isOther((it) => it.tls === undefined)) fixed.push('whether tls is set'); // Agents have the address.
  if (fixed.length) {
    const [verb, them] = fixed.length > 1 ? ['need', 'them'] : ['needs', 'it'];
    throw new Refusal(
      'conflict',
      `Nothing was changed: a change of ${fixed.join(', ')} ${verb} a restart. Restart Purser, or put ${them} back and reload.`,
    );
  }
  const upstream = ({ router }: Config) => router.upstreams.map((it) => [it.name, it] as const);
  const model = ({ router }: Config) => router.models.map((it) => [it.id, it] as const);
  const receiver = ({ events }: Config) => events.receivers.map((it) => [it.name, it] as const);
  return {
    models: listChange(model(before), model(after)),
    upstreams: listChange(upstream(before), upstream(after)),
    receivers: listChange(receiver(before), receiver(after)),
    settings: [
      ...CHANGEABLE.filter((name) => isOther((it) => it[name])),
      ...ROUTER.filter((name) => isOther(({ router }) => router[name])).map((name) => `router.${name}`),
      ...(isOther(({ events }) => events.account_low_cents) ? ['events.account_low_cents'] : []),
    ],
  };
}

function listChange(
  before: (readonly [name: string, value: unknown])[],
  after: (readonly [name: string, value: unknown])[],
): ListChange {
  const [was, is] = [new Map(before), new Map(after)];
  return {
    added: [...is.keys()].filter((name) => !was.has(name)),
    removed: [...was.keys()].filter((name) => !is.has(name)),
    changed: [...is].filter(([name, value]) => was.has(name) && !isSame(was.get(name), value)).map(([name]) => name),
  };
}
