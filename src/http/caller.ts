import type { HttpBindings } from '@hono/node-server';
import type { Context } from 'hono';
import { authenticate, bearerOf, type Principal } from '../access/principal.ts';
import { Refusal } from '../base/refusal.ts';
import type { Tenant } from '../ledger/tenant.ts';
import { networkOf } from '../net/address.ts';
import { isE2bApi } from './e2b/paths.ts';
import type { Env, HttpApp } from './endpoint.ts';
import { onceClosed } from './exchange.ts';
import { isGatewayRequest } from './openai-error.ts';

/** The caller of a request: who it is, where it calls from, and the limits that it is counted by. */

const BUSY_RETRY_SECONDS = 2;

/** Returns the id by which the limits count requests: the wallet, the account of a session, or the key. */
function callerOf(principal: Principal): string {
  if (principal.kind === 'wallet') return principal.wallet.id;
  if (principal.kind === 'router') return principal.walletId;
  return principal.kind === 'session' ? principal.accountId : principal.keyId;
}

/** Returns the tenant of a caller. The account's own requests count as one tree beside those of its wallets. */
export function tenantFor({ tenantOf }: Pick<HttpApp, 'tenantOf'>, principal: Principal): Tenant {
  if (principal.kind === 'wallet') return tenantOf(principal.wallet.id);
  if (principal.kind === 'router') return tenantOf(principal.walletId);
  return { treeId: principal.accountId, accountId: principal.accountId };
}

/** Returns the id by which shared resources are counted: the tree of the wallet, or the account. */
export const ownerOf = (app: Pick<HttpApp, 'tenantOf'>, principal: Principal): string =>
  tenantFor(app, principal).treeId;

/**
 * Counts a request as its owner's until its response is over. Throws `rate_limited` when the owner has too many at once:
 * the connection of an authenticated caller is never cut off.
 */
export function enter({ atOnce }: Pick<HttpApp, 'atOnce'>, c: Context<Env>, owner: string): void {
  if (!atOnce.tryTake(owner, 1))
    throw new Refusal('rate_limited', 'Too many requests of this caller are in progress. Retry when some are done.', {
      retryAfterSeconds: BUSY_RETRY_SECONDS,
    });
  onceClosed(c, () => atOnce.release(owner, 1));
}

/** Returns the header in which Anthropic's clients send their key, under the gateway's base URL, and E2B's theirs. */
function keyHeaderOf(c: Context<Env>): string | undefined {
  const { method, path } = c.req;
  return isGatewayRequest(method, path) || isE2bApi(path) ? c.req.header('x-api-key') : undefined;
}

/**
 * Returns the token of a request. A bearer token takes precedence: some clients also send the key of another service. E2B's older
 * SDKs send the token of E2B's command line as a bearer token beside their key.
 */
function tokenOf(c: Context<Env>): string {
  const { authorization } = c.env.incoming.headers;
  const isKeyFirst = authorization === undefined || isE2bApi(c.req.path);
  return (isKeyFirst ? keyHeaderOf(c) : undefined) ?? bearerOf(authorization);
}

/** Authenticates and applies rate limits: a valid token against its own, a failure against that of its network. */
export async function authenticateAndLimit(app: HttpApp, c: Context<Env>): Promise<Principal> {
  const { incoming } = c.env;
  try {
    const found = authenticate(app, tokenOf(c));
    const principal = found instanceof Promise ? await found : found;
    app.authenticated.add(incoming.socket);
    if (principal.kind === 'router') c.set('routerWallet', principal.walletId);
    enter(app, c, ownerOf(app, principal));
    const isWallet = principal.kind === 'wallet' || principal.kind === 'router';
    app.limits[isWallet ? 'wallet' : 'account'].take(callerOf(principal));
    if ('keyId' in principal) app.used(principal.keyId, app.clock.now());
    return principal;
  } catch (error) {
    // A wrong credential may be a guess; a missing one is not.
    const credential = incoming.headers.authorization ?? keyHeaderOf(c);
    if (error instanceof Refusal && error.code === 'unauthenticated' && credential !== undefined)
      app.limits.failedAuth.take(callerNetwork(app, incoming));
    throw error;
  }
}

/** Returns the network of the client, also behind trusted proxies. Unauthenticated requests are limited by it. */
export function callerNetwork(app: Pick<HttpApp, 'addressOf'>, incoming: HttpBindings['incoming']): string {
  const forwarded = incoming.headers['x-forwarded-for'];
  const forwardedFor = Array.isArray(forwarded) ? forwarded.join(',') : forwarded;
  return networkOf(app.addressOf(incoming.socket.remoteAddress, forwardedFor));
}
