import { type Context, Hono } from 'hono';
import { Refusal } from '../base/refusal.ts';
import { unreadyReason } from '../books/readiness.ts';
import { describeReportOnly } from '../lease/report-only.ts';
import { describeFrozen } from '../ledger/frozen.ts';
import { createE2b } from './e2b/app.ts';
import { E2B_PATH, FILES_PATH } from './e2b/paths.ts';
import { allowOf, type Endpoint, type Env, type HttpApp, onError, open, requestIdOf } from './endpoint.ts';
import { createRouter } from './fixed-paths.ts';
import { GATEWAY_PATH, GATEWAY_PATHS } from './openai-error.ts';
import { openApiDocument } from './openapi.ts';
import { readAccount } from './routes/account.ts';
import { createCheckout } from './routes/billing.ts';
import { readBudget } from './routes/budget.ts';
import { createChatCompletion } from './routes/chat.ts';
import * as compute from './routes/compute.ts';
import * as dialects from './routes/dialects.ts';
import * as inside from './routes/guest.ts';
import { createAccountKey, deleteKey, listKeys } from './routes/keys.ts';
import { answerMcp } from './routes/mcp.ts';
import { listModels } from './routes/models.ts';
import { openPort, PORT_PATH, servePortPath } from './routes/ports.ts';
import * as processes from './routes/process.ts';
import { listResources, listWalletResources } from './routes/resources.ts';
import * as router from './routes/router.ts';
import * as run from './routes/run.ts';
import * as snapshots from './routes/snapshot.ts';
import { readRunSpend, readSpend } from './routes/spend.ts';
import { signTransfer } from './routes/transfer.ts';
import * as wallets from './routes/wallets.ts';
import { sdkFiles } from './sdk.ts';
import { stripeWebhook } from './webhook.ts';

type Method = 'GET' | 'POST' | 'PUT' | 'DELETE';

/** Every endpoint of the interface, section 4, in the same order. */
export const ROUTES: readonly [Method, string, Endpoint][] = [
  ['GET', '/v1/account', readAccount],
  ['GET', '/v1/keys', listKeys],
  ['POST', '/v1/keys', createAccountKey],
  ['DELETE', '/v1/keys/:id', deleteKey],
  ['GET', '/v1/wallets', wallets.listWallets],
  ['POST', '/v1/wallets', wallets.createWallet],
  ['GET', '/v1/wallets/:id', wallets.readWallet],
  ['GET', '/v1/resources', listResources],
  ['GET', '/v1/wallets/:id/token', wallets.readWalletToken],
  ['POST', '/v1/wallets/:id/close', wallets.closeWallet],
  ['GET', '/v1/wallets/:id/resources', listWalletResources],
  ['POST', '/v1/billing/checkout', createCheckout],

  ['GET', '/v1/budget', readBudget],
  ['GET', '/v1/compute/offers', compute.listOffers],
  ['GET', '/v1/compute/list', compute.listCompute],
  ['GET', '/v1/models', listModels],
  ['POST', '/v1/compute/create', compute.createCompute],
  ['POST', '/v1/compute/extend', compute.extendCompute],
  ['POST', '/v1/run/close', run.closeRun],
  ['POST', '/v1/compute/stop', compute.stopCompute],
  ['POST', '/v1/compute/ssh', compute.sshCompute],
  ['POST', '/v1/compute/status', compute.readCompute],
  ['POST', '/v1/compute/exec', inside.execCompute],
  ['POST', '/v1/compute/upload', inside.uploadCompute],
  ['POST', '/v1/transfer/sign', signTransfer],
  ['POST', '/v1/router/key', router.createRouterKey],
  ['POST', '/v1/chat/completions', createChatCompletion],
];

/**
 * The endpoints beside those of the interface: work in leases, moves of money, and spend reports (design, sections 7, 13
 * and 16).
 */
export const EXTRAS: typeof ROUTES = [
  ['POST', '/v1/wallets/:id/budget', wallets.changeBudget],
  ['POST', '/v1/wallets/:id/extend', wallets.extendWallet],
  ['POST', '/v1/wallets/:id/freeze', wallets.freezeWallet],
  ['POST', '/v1/wallets/:id/unfreeze', wallets.unfreezeWallet],
  ['PUT', '/v1/wallets/:id/refill', wallets.setRefill],
  ['DELETE', '/v1/wallets/:id/refill', wallets.endRefill],
  ['POST', '/v1/compute/keep', compute.keepCompute],
  ['POST', '/v1/compute/egress', compute.narrowEgress],
  ['POST', '/v1/compute/pause', compute.pauseCompute],
  ['POST', '/v1/compute/resume', compute.resumeCompute],
  ['POST', '/v1/compute/snapshot', snapshots.takeComputeSnapshot],
  ['POST', '/v1/compute/snapshot/delete', snapshots.deleteComputeSnapshot],
  ['GET', '/v1/compute/snapshots', snapshots.listComputeSnapshots],
  ['POST', '/v1/compute/download', inside.downloadCompute],
  ['POST', '/v1/compute/files', inside.listComputeFiles],
  ['POST', '/v1/compute/process/start', processes.startComputeProcess],
  ['POST', '/v1/compute/process/list', processes.listComputeProcesses],
  ['POST', '/v1/compute/process/log', processes.readComputeProcessLog],
  ['POST', '/v1/compute/process/kill', processes.killComputeProcess],
  ['GET', '/v1/spend', readSpend],
  ['GET', '/v1/run/spend', readRunSpend],
  ['GET', '/v1/run/operations', run.listRunOperations],
  ['GET', '/v1/run/wallets', run.listRunWallets],
  ['POST', '/v1/run/wallets', run.createChild],
  ['GET', '/v1/run/wallets/:id', run.readChild],
  ['POST', '/v1/run/wallets/:id/close', run.closeChild],
  ['POST', '/v1/compute/port', openPort],
];

/** The endpoints under each path of the gateway, for clients of model servers (design, sections 8 and 14). */
const OF_GATEWAY: typeof ROUTES = [
  ['GET', '/models', router.listRouterModels],
  ['GET', '/models/:id{.+}', router.readRouterModel],
  ['POST', '/chat/completions', router.createRouterChatCompletion],
  ['POST', '/responses', dialects.createResponse],
  ['POST', '/messages', dialects.createMessage],
  ['POST', '/messages/count_tokens', dialects.countTokens],
  ['POST', '/completions', router.createTextCompletion],
  ['POST', '/embeddings', router.createEmbeddings],
  ['POST', '/rerank', router.createRanking],
  ['GET', '/key', router.readGatewayKey],
];
const ROUTER_ROUTES = GATEWAY_PATHS.flatMap((base) =>
  OF_GATEWAY.map(([method, path, it]) => [method, `${base}${path}`, it] as const),
);
const SERVED = OF_GATEWAY.map(([method, path]) => `${method} ${path.replace(/\{.*\}/, '')}`);
/** Codex asks for a WebSocket here before it sends POST. */
const WITHOUT_SOCKET = GATEWAY_PATHS.map((base) => `${base}/responses`);

/** The wallet as a server of the Model Context Protocol (design, section 14). Its API is the list of its tools. */
const MCP_ROUTES: typeof ROUTES = [['POST', '/v1/mcp', answerMcp]];

/**
 * Builds the HTTP application that is served on `listen`: endpoints, API document, health checks and webhook. All other
 * paths outside /v1 go to `pages`.
 */
export function createHttpApp(app: HttpApp, pages?: Hono<Env>['fetch']): Hono<Env> {
  const hono = new Hono<Env>({ router: createRouter() });
  hono.onError(onError(app));
  const routes = [...ROUTES, ...EXTRAS, ...ROUTER_ROUTES, ...MCP_ROUTES];
  for (const [method, path, endpoint] of routes) hono.on(method, path, open(app, endpoint));
  // For every method and path: they belong to the server inside.
  for (const path of [PORT_PATH, `${PORT_PATH}/*`]) hono.all(path, servePortPath(app));

  const { fetch: answerE2b } = createE2b(app);
  for (const path of [`${E2B_PATH}/*`, FILES_PATH]) hono.all(path, (c) => answerE2b(c.req.raw, c.env));

  let described: { catalogue: HttpApp['catalogue']; document: string } | undefined;
  const describe = (c: Context<Env>) => {
    const { catalogue, state } = app;
    if (described?.catalogue !== catalogue) {
      const forwarded = catalogue.list.flatMap(({ routes }) => routes.flatMap((it) => it.forward));
      const document = JSON.stringify(openApiDocument([...ROUTES, ...EXTRAS], state.baseUrl, forwarded));
      described = { catalogue, document };
    }
    return json(c, 200, described.document);
  };
  const plain: Record<string, (c: Context<Env>) => Response> = {
    ...sdkFiles(),
    '/v1/openapi.json': describe,
    '/openapi.json': describe,
    '/healthz': (c) => json(c, 200, '{"ok":true}'),
    '/readyz': (c) => {
      const fault = unreadyReason(app);
      if (fault) return json(c, 503, JSON.stringify({ ready: false, reason: fault }));
      const reportOnly = describeReportOnly(app.ledger.read)?.sentence; // Report-only does not stop payments, so the server is ready.
      const frozen = describeFrozen(app.ledger.read, app.clock.now()); // The operator's own doing.
      const { unsafeStorage } = app;
      const states = {
        ...(reportOnly ? { report_only: reportOnly } : {}),
        ...(frozen ? { frozen } : {}),
        ...(unsafeStorage ? { unsafe_storage: unsafeStorage } : {}),
      };
      return json(c, 200, JSON.stringify({ ready: true, ...states }));
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
      if (WITHOUT_SOCKET.includes(path) && c.req.header('upgrade')) throw new Refusal('upgrade_not_supported');
      c.set('allow', allowOf(methods));
      throw new Refusal('method_not_allowed');
    });
  hono.notFound((c) => {
    if (pages && !c.req.path.startsWith('/v1')) return pages(c.req.raw, c.env);
    const isBase = GATEWAY_PATHS.includes(c.req.path.replace(/\/$/, ''));
    if (isBase && c.req.method === 'HEAD') return json(c, 200, ''); // Claude Code probes whether the server is up.
    const isGateway = isBase || c.req.path.startsWith(`${GATEWAY_PATH}/`);
    const served = `${app.state.baseUrl}${GATEWAY_PATH} serves ${SERVED.join(', ')}.`;
    throw new Refusal('not_found', `There is no such path.${isGateway ? ` ${served}` : ''}`);
  });
  return hono;
}

function json(c: Context<Env>, status: number, body: string): Response {
  return new Response(body, {
    status,
    headers: { 'content-type': 'application/json', 'x-request-id': requestIdOf(c) },
  });
}
