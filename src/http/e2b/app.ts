import { Hono } from 'hono';
import { Refusal } from '../../base/refusal.ts';
import type { Env, HttpApp } from '../endpoint.ts';
import { createAttempts } from './attempts.ts';
import { answerFault, ConnectFault } from './connect.ts';
import { openSandbox, runningOf } from './envd.ts';
import { answerError, headersFor } from './errors.ts';
import { serveFiles } from './files.ts';
import { FILESYSTEM_CALLS } from './filesystem.ts';
import { E2B_PATH, ENVD_PATH, FILES_PATH } from './paths.ts';
import { forwardToPort } from './ports.ts';
import { PROCESS_CALLS } from './process.ts';
import { createProcesses } from './processes.ts';
import * as sandboxes from './sandboxes.ts';
import { createWatchers } from './watchers.ts';

const NO_PAUSE = 'A sandbox here cannot be paused: it runs until its timeout, or until it is killed.';
const NO_COPY = 'A sandbox here can neither be copied nor made a snapshot of.';
const NO_RULES = 'The network of a sandbox is set by the operator, and not by its users.';

/** Builds the application that serves E2B's SDKs: leases as sandboxes. */
export function createE2b(app: HttpApp): Hono<Env> {
  const hono = new Hono<Env>();
  hono.onError((error, c) => answerError(app, c, error));
  const attempts = createAttempts(app);
  const serve = (run: sandboxes.ApiHandler) => sandboxes.serveApi(app, run);

  // Older SDKs ask for the same without the version.
  for (const base of [`${E2B_PATH}/sandboxes`, `${E2B_PATH}/v2/sandboxes`]) {
    hono.post(base, serve(sandboxes.createSandbox(attempts)));
    hono.get(base, serve(sandboxes.listSandboxes));
    hono.get(`${base}/:id`, serve(sandboxes.readSandbox));
    hono.delete(`${base}/:id`, serve(sandboxes.killSandbox));
    hono.post(`${base}/:id/connect`, serve(sandboxes.connectSandbox));
    hono.post(`${base}/:id/timeout`, serve(sandboxes.setSandboxTimeout));
    hono.get(`${base}/:id/metrics`, serve(sandboxes.measureSandbox));
    hono.post(`${base}/:id/pause`, serve(sandboxes.refuseOperation(NO_PAUSE)));
    for (const name of ['fork', 'snapshots'])
      hono.post(`${base}/:id/${name}`, serve(sandboxes.refuseOperation(NO_COPY)));
    hono.put(`${base}/:id/network`, serve(sandboxes.refuseOperation(NO_RULES)));
  }
  hono.use(`${ENVD_PATH}/*`, forwardToPort(app));
  const [processes, watchers] = [createProcesses(app), createWatchers(app)];
  const calls = { 'process.Process': PROCESS_CALLS, 'filesystem.Filesystem': FILESYSTEM_CALLS };
  hono.post(`${ENVD_PATH}/:service{process\\.Process|filesystem\\.Filesystem}/:name`, async (c) => {
    try {
      const opened = openSandbox(app, c, 'envd');
      const name = c.req.param('name');
      const service = calls[c.req.param('service') as keyof typeof calls];
      const call = Object.hasOwn(service, name) ? service[name] : undefined;
      if (!call) throw new ConnectFault('unimplemented', 'Purser does not serve this call.');
      return await call({ app, c, opened, processes, watchers });
    } catch (error) {
      return answerFault(app, c, error);
    }
  });
  hono.get(`${ENVD_PATH}/health`, (c) => {
    const opened = openSandbox(app, c, 'envd');
    runningOf(app, opened);
    return new Response(null, { status: 204, headers: headersFor(c) });
  });

  for (const [path, isAtRoot] of [
    [`${ENVD_PATH}/files`, false],
    [FILES_PATH, true],
  ] as const)
    hono.on(['GET', 'POST'], path, serveFiles(app, isAtRoot));

  hono.all('*', () => {
    throw new Refusal('not_found', 'Purser does not serve this part of E2B’s API.');
  });
  return hono;
}
