import type { ServerResponse } from 'node:http';
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response';
import type { MiddlewareHandler } from 'hono';
import { Refusal } from '../../base/refusal.ts';
import { type Env, type HttpApp, requestIdOf } from '../endpoint.ts';
import { pathOf, portOf, urlOf } from '../routes/ports.ts';
import { OF_TRAFFIC, openPorts } from './envd.ts';
import { ENVD_PATH } from './paths.ts';

/** The port of E2B's agent inside a sandbox: Purser answers for it. */
const ENVD_PORT = '49983';

/** Forwards a request that names another port than the agent's to the server inside. Its path is what follows the prefix. */
export const forwardToPort =
  (app: HttpApp): MiddlewareHandler<Env> =>
  async (c, next) => {
    const named = c.req.header('e2b-sandbox-port') ?? ENVD_PORT;
    if (named === ENVD_PORT) return next();
    const { resource } = openPorts(app, c);
    const port = portOf(named);
    if (port === undefined) throw new Refusal('invalid_request', 'E2b-Sandbox-Port: must be the number of a port.');
    const { incoming, outgoing } = c.env;
    await app.portProxy.forward(incoming, outgoing as ServerResponse, {
      requestId: requestIdOf(c),
      resourceId: resource.id,
      port,
      path: pathOf(urlOf(incoming).slice(ENVD_PATH.length)),
      base: ENVD_PATH,
      origin: undefined,
      cookie: '',
      ofPurser: OF_TRAFFIC,
    });
    return RESPONSE_ALREADY_SENT;
  };
