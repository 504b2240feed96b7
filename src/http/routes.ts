import { type Context, Hono } from 'hono';
import { describeReportOnly } from '../lease/report-only.ts';
import { Refusal } from '../refusal.ts';
import { type Endpoint, type Env, type HttpApp, onError, open, requestIdOf } from './endpoint.ts';
import { openApiDocument } from './openapi.ts';
import { readAccount } from './routes/account.ts';
import { createCheckout } from './routes/billing.ts';
import { readBudget } from './routes/budget.ts';
import { createChatCompletion } from './routes/chat.ts';
import * as compute from './routes/compute.ts';
import { createAccountKey, deleteKey, listKeys } from './routes/keys.ts';
import { listModels } from './routes/models.ts';
import { listResources, listWalletResources } from './routes/resources.ts';
import * as router from './routes/router.ts';
import { closeRun } from './routes/run.ts';
import { signTransfer } from './routes/transfer.ts';
import { closeWallet, createWallet, listWallets, readWallet, readWalletToken } from './routes/wallets.ts';
import { stripeWebhook } from './webhook.ts';

export type Method = 'GET' | 'POST' | 'DELETE';

/** Every endpoint of the interface, section 4, in the same order. */
export const ROUTES: readonly [Method, string, Endpoint][] = [
  ['GET', '/v1/account', readAccount],
  ['GET', '/v1/keys', listKeys],
  ['POST', '/v1/keys', createAccountKey],
  ['DELETE', '/v1/keys/:id', deleteKey],
  ['GET', '/v1/wallets', listWallets],
  ['POST', '/v1/wallets', createWallet],
  ['GET', '/v1/wallets/:id', readWallet],
  ['GET', '/v1/resources', listResources],
  ['GET', '/v1/wallets/:id/token', readWalletToken],
  ['POST', '/v1/wallets/:id/close', closeWallet],
  ['GET', '/v1/wallets/:id/resources', listWalletResources],
  ['POST', '/v1/billing/checkout', createCheckout],

  ['GET', '/v1/budget', readBudget],
  ['GET', '/v1/compute/offers', compute.listOffers],
  ['GET', '/v1/compute/list', compute.listCompute],
  ['GET', '/v1/models', listModels],
  ['POST', '/v1/compute/create', compute.createCompute],
  ['POST', '/v1/compute/extend', compute.extendCompute],
  ['POST', '/v1/run/close', closeRun],
  ['POST', '/v1/compute/stop', compute.stopCompute],
  ['POST', '/v1/compute/ssh', compute.sshCompute],
  ['POST', '/v1/compute/status', compute.readCompute],
  ['POST', '/v1/compute/exec', compute.execCompute],
  ['POST', '/v1/compute/upload', compute.uploadCompute],
  ['POST', '/v1/transfer/sign', signTransfer],
  ['POST', '/v1/router/key', router.createRouterKey],
  ['POST', '/v1/chat/completions', createChatCompletion],
];

/** The endpoints under the gateway's base URL, for clients of OpenAI's API (design, section 8). */
const ROUTER_ROUTES: typeof ROUTES = [
  ['GET', '/v1/router/models', router.listRouterModels],
  ['GET', '/v1/router/models/:id{.+}', router.readRouterModel],
  ['POST', '/v1/router/chat/completions', router.createRouterChatCompletion],
  ['POST', '/v1/router/embeddings', router.createEmbeddings],
];

/** Builds the HTTP application that is served on `listen`: endpoints, API document, health checks and webhook. */
export function createHttpApp(app: HttpApp): Hono<Env> {
  const hono = new Hono<Env>();
  hono.onError(onError(app));
  const routes = [...ROUTES, ...ROUTER_ROUTES];
  for (const [method, path, endpoint] of routes) hono.on(method, path, open(app, endpoint));

  let document: string | undefined;
  const describe = (c: Context<Env>) => {
    document ??= JSON.stringify(openApiDocument(ROUTES, app.state.baseUrl));
    return json(c, 200, document);
  };
  const plain: Record<string, (c: Context<Env>) => Response> = {
    '/v1/openapi.json': describe,
    '/openapi.json': describe,
    '/healthz': (c) => json(c, 200, '{"ok":true}'),
    '/readyz': (c) => {
      const stopping = app.health.stopping ? 'the server is stopping' : undefined;
      const fault =
        app.health.fault ?? stopping ?? app.diskReserve.shortage() ?? app.ledger.failure() ?? app.clock.holdsBlocked();
      if (fault) return json(c, 503, JSON.stringify({ ready: false, reason: fault }));
      const reportOnly = describeReportOnly(app.ledger.read)?.sentence; // Report-only does not stop payments, so the server is ready.
      return json(c, 200, JSON.stringify({ ready: true, ...(reportOnly ? { report_only: reportOnly } : {}) }));
    },
  };
  for (const [path, handle] of Object.entries(plain)) hono.get(path, handle);

  const allowed = new Map<string, string[]>(Object.keys(plain).map((path) => [path, ['GET']]));
  if (app.payments?.takesWebhooks) {
    hono.post('/webhooks/stripe', stripeWebhook(app, app.payments));
    allowed.set('/webhooks/stripe', ['POST']);
  }
  for (const [method, path] of routes) allowed.set(path, [...(allowed.get(path) ?? []), method]);
  for (const [path, methods] of allowed)
    hono.all(path, (c) => {
      c.set('allow', methods.join(', '));
      throw new Refusal('method_not_allowed');
    });
  hono.notFound(() => {
    throw new Refusal('not_found', 'There is no such path.');
  });
  return hono;
}

function json(c: Context<Env>, status: number, body: string): Response {
  return new Response(body, {
    status,
    headers: { 'content-type': 'application/json', 'x-request-id': requestIdOf(c) },
  });
}
