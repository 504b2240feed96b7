import type { Context } from 'hono';
import { refuseFault } from '../../base/health.ts';
import { Refusal } from '../../base/refusal.ts';
import type { Backend } from '../../compute/backend.ts';
import { findResource, type Resource } from '../../ledger/resource.ts';
import { findSandbox, hasSandboxEnded, type Sandbox } from '../../ledger/sandbox.ts';
import { findWallet, type Wallet } from '../../ledger/wallet.ts';
import { callerNetwork, enter } from '../caller.ts';
import type { Env, HttpApp } from '../endpoint.ts';
import { active, leaseEnded } from '../routes/compute.ts';
import { isToken, type SandboxDoor, sandboxToken } from './tokens.ts';

/** Callers of a sandbox are known by its own tokens. The user that `Authorization: Basic` names is no credential, and is not read. */

/** A sandbox that a caller has shown a token of. */
export type Opened = { wallet: Wallet; resource: Resource; sandbox: Sandbox };
/** The same, while it runs. */
export type Running = Opened & { backend: Backend; ref: string };

/** Returns the sandbox with this label, whatever its state. */
export function sandboxWith(app: HttpApp, label: string): Opened | undefined {
  if (!/^[0-9a-z]{26}$/.test(label)) return undefined;
  const resource = findResource(app.ledger.read, `res_${label}`);
  const sandbox = resource && findSandbox(app.ledger.read, resource.id);
  const wallet = resource && findWallet(app.ledger.read, resource.walletId);
  return sandbox && wallet && { wallet, resource, sandbox };
}

/** Throws `unauthenticated`, and counts a token that was shown as a failed sign-in. */
export function refuseStranger(app: HttpApp, c: Context<Env>, shown: string | undefined): never {
  if (shown !== undefined) app.limits.failedAuth.take(callerNetwork(app, c.env.incoming));
  throw new Refusal('unauthenticated', 'The token of the sandbox is missing or wrong.');
}

/** Lets a caller in who has shown the right token: its requests are counted as its wallet's. */
export function admitTo(app: HttpApp, c: Context<Env>, opened: Opened): Opened {
  app.authenticated.add(c.env.incoming.socket);
  enter(app, c, app.tenantOf(opened.wallet.id).treeId);
  app.limits.wallet.take(opened.wallet.id);
  return opened;
}

/** The header with the token of a sandbox's ports. */
export const TRAFFIC_TOKEN = 'e2b-traffic-access-token';
const SANDBOX_ID = 'e2b-sandbox-id';
/** The header that has the token of each door. */
const TOKEN_HEADERS: Record<SandboxDoor, string> = { envd: 'x-access-token', traffic: TRAFFIC_TOKEN };
/** The headers of a request to a port that are for Purser, and not for the server inside. */
export const OF_TRAFFIC: ReadonlySet<string> = new Set([
  ...Object.values(TOKEN_HEADERS),
  SANDBOX_ID,
  'e2b-sandbox-port',
]);

/**
 * Authenticates a call into a sandbox, by default the one that its headers name, by the token of one of its doors. An unknown
 * sandbox is refused as a wrong token is.
 */
export function openSandbox(
  app: HttpApp,
  c: Context<Env>,
  door: SandboxDoor,
  label = c.req.header(SANDBOX_ID) ?? '',
): Opened {
  refuseFault(app.health);
  const shown = c.req.header(TOKEN_HEADERS[door]);
  const found = sandboxWith(app, label);
  if (!found || !isToken(shown, sandboxToken(app, found.wallet, found.resource, door)))
    return refuseStranger(app, c, shown);
  return admitTo(app, c, found);
}

/** Returns a sandbox that runs. Throws the refusals of `active`, also for one that is over before its lease is. */
export const runningOf = (app: HttpApp, opened: Opened): Running => {
  const { backend, ref, resource } = active(app, opened.wallet, opened.resource.id);
  if (hasSandboxEnded(app.ledger.read, resource, app.clock.now())) throw leaseEnded('requested');
  return { ...opened, backend, ref };
};

/** Lets a caller in to the ports of a running sandbox, who has shown the token of those. */
export const openPorts = (app: HttpApp, c: Context<Env>, label?: string): Running =>
  runningOf(app, openSandbox(app, c, 'traffic', label));
