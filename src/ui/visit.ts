import type { IncomingMessage } from 'node:http';
import type { Operator } from '../access/browser-sessions.ts';
import type { Challenges } from '../access/challenges.ts';
import type { CodeFlow } from '../access/code-flow.ts';
import { type AccountPrincipal, admit, type Principal } from '../access/principal.ts';
import { newId } from '../base/id.ts';
import { Refusal } from '../base/refusal.ts';
import { visible } from '../base/visible.ts';
import type { CheckFinding } from '../compute/backend.ts';
import type { Config } from '../config/config.ts';
import { type Endpoint, type HttpApp, invoke } from '../http/endpoint.ts';
import { findWallet, type Wallet, walletOf } from '../ledger/wallet.ts';
import type { OperatorApp } from '../operator/command.ts';
import { type CommandInput, type CommandName, type CommandOutput, runCommand } from '../operator/commands.ts';
import type { PageAddress } from './guard.ts';
import type { Once } from './once.ts';
import type { Previews } from './previews.ts';
import type { Pulse } from './pulse.ts';

/** The part of the App that the page uses. */
export type UiApp = HttpApp &
  OperatorApp & {
    config: Config;
    codeFlow: CodeFlow | undefined;
    runDoctor?: () => Promise<CheckFinding[]>;
  };

/**
 * The parts of the page beside the App: the settings without secrets, the spending of the last hour, the sent forms, and the
 * changes that were shown.
 */
export type UiParts = { settings: () => string; pulse: Pulse; once: Once; previews: Previews };

/** A list as a file that the browser saves. */
export type CsvFile = { name: string; csv: string };

/** The viewer of the page. */
export type Viewer =
  | ({ kind: 'operator'; sessionId: string } & Operator)
  | { kind: 'account'; sessionId: string; accountId: string; principal: AccountPrincipal };

/** A request of a signed-in viewer for a page. */
export type Visit = {
  app: UiApp;
  parts: UiParts;
  viewer: Viewer;
  incoming: IncomingMessage;
  address: PageAddress;
  challenges: Challenges;
  /** Unix seconds. */
  now: number;
  /** The reader's time zone; UTC in a browser without a script. */
  zone: string;
  path: string;
  params: Record<string, string>;
  query: URLSearchParams;
  /** The fields of a submitted form. */
  form: URLSearchParams;
  requestId: string;
};

/** Runs an operator's command. Throws its refusals. */
export function run<N extends CommandName>(
  { app }: { app: OperatorApp },
  name: N,
  input: CommandInput<N>,
): Promise<CommandOutput<N>> {
  return runCommand(app, name, input) as Promise<CommandOutput<N>>;
}

type VisitArguments = { raw?: unknown; params?: Record<string, string>; key?: string | undefined };

/** Calls an endpoint of `/v1` for the holder of an account. Throws its refusals. */
export function callEndpoint<A>(visit: Visit, endpoint: Endpoint, call: VisitArguments): Promise<A> {
  const { viewer } = visit;
  if (viewer.kind !== 'account') throw new Error('only the holder of an account calls endpoints');
  return callAs(visit, viewer.principal, viewer.accountId, endpoint, call);
}

/**
 * Calls an endpoint of `/v1` as a wallet that the viewer may see, and whose token the viewer may therefore read. Throws its
 * refusals.
 */
export const callAsWallet = <A>(visit: Visit, wallet: Wallet, endpoint: Endpoint, call: VisitArguments): Promise<A> =>
  callAs(visit, { kind: 'wallet', wallet }, wallet.accountId, endpoint, call);

async function callAs<A>(
  visit: Visit,
  principal: Principal,
  accountId: string,
  endpoint: Endpoint,
  { raw = {}, params = {}, key }: VisitArguments,
): Promise<A> {
  const { app } = visit;
  const share = app.memory.open(accountId);
  try {
    const reply = await invoke(app, endpoint, {
      principal: admit(principal, endpoint.scope),
      raw,
      key: endpoint.idempotent ? (key ?? newId('req')) : undefined,
      requestId: visit.requestId,
      params,
      query: {},
      headers: {},
      share,
      whenGone: () => {},
    });
    if (!('body' in reply)) throw new Error('an endpoint of accounts streams');
    return reply.body as A;
  } finally {
    share.close();
  }
}

/** Returns a wallet that the viewer may see. Throws `not_found`, also for another account's. */
export function walletSeen({ app, viewer }: Visit, walletId: string): Wallet {
  if (viewer.kind === 'account') return walletOf(app.ledger.read, viewer.accountId, walletId);
  const wallet = findWallet(app.ledger.read, walletId);
  if (!wallet) throw new Refusal('not_found', 'There is no such wallet.');
  return wallet;
}

/** Returns whether the viewer may act as a signed-in person: an account key may not, nor a session that it opened. */
export const isPerson = ({ viewer }: Visit): boolean =>
  viewer.kind === 'account' && viewer.principal.kind !== 'account';

/** Throws `not_found` unless the viewer is the operator. */
export function operatorOnly({ viewer }: Pick<Visit, 'viewer'>): void {
  if (viewer.kind !== 'operator') throw new Refusal('not_found', 'There is no such page.');
}

/** Returns the account whose rows a list may show: the viewer's own, or for the operator the one in the query. */
export function accountIn({ viewer, query }: Visit): string | undefined {
  return viewer.kind === 'account' ? viewer.accountId : query.get('account') || undefined;
}

/** Returns the wallet to which the query limits a list, if any. Throws `not_found`, also for another account's. */
export function walletIn(visit: Visit, name = 'wallet'): Wallet | undefined {
  const walletId = visit.query.get(name);
  return walletId ? walletSeen(visit, walletId) : undefined;
}

/** Returns the tag in the address as it stands there: one that begins or ends with a space is another tag. */
export function tagIn({ query }: Pick<Visit, 'query'>): string | undefined {
  const tag = query.get('tag');
  return tag?.trim() ? tag : undefined;
}

/** Returns the choices of a field for a model or a slot: those there are, and the chosen one even if it is no longer. */
export function subjectChoices({ app }: Visit, chosen: string): [value: string, text: string][] {
  const known = [...app.config.router.models.map(({ id }) => id), ...app.slots.list.map(({ slot }) => slot), chosen];
  return [['', 'all'], ...[...new Set(known)].filter(Boolean).map((it): [string, string] => [it, visible(it)])];
}
