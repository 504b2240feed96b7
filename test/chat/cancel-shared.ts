import assert from 'node:assert/strict';
import type http from 'node:http';
import type { TestContext } from 'node:test';
import { formatUsd, Nanos } from '../../src/base/money.ts';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { type HeldTimeouts, holdTimeouts } from '../helper/held-timeouts.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { until, waitFor } from '../helper/waiting.ts';

// Streams whose clients go away (docs/decisions/0075). The grace is over when the test says so.

const GRACE_SECONDS = 7;
type Router = Record<string, any>;

/** Opens a server whose grace is over when `grace` says so. */
export async function open(
  t: TestContext,
  router: Router | ((router: Router) => Router) = {},
  settings: Record<string, unknown> = {},
) {
  const grace = holdTimeouts(t, GRACE_SECONDS * 1000);
  const purser = await openTestServer(t, {
    settings,
    change(all) {
      const own = { ...all.router, cancel_grace_seconds: GRACE_SECONDS };
      return { ...all, router: typeof router === 'function' ? router(own) : { ...own, ...router } };
    },
  });
  return { purser, grace, gateway: await openGateway(purser) };
}

/** A step that lasts until the connection is closed from Purser's side; `closed` resolves then. */
export function cutOff(): { step: (response: http.ServerResponse) => Promise<unknown>; closed: Promise<unknown> } {
  const { promise, resolve } = Promise.withResolvers<unknown>();
  return {
    step(response) {
      response.once('close', resolve);
      return promise;
    },
    closed: waitFor('the connection to the model server is closed', promise),
  };
}

/** Resolves when all that was written has been sent, and a server in this thread has had its turns to read it. */
export async function arrived(response: http.ServerResponse): Promise<void> {
  await new Promise((resolve) => response.write(':\n\n', resolve));
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
}

/** Returns the latest operation of the books. */
export const latest = async (purser: TestServer) => (await purser.run('operation.list', {})).operations[0];

/** Returns the estimated price of the default chat: the bound of its prompt, and so many tokens delivered. */
export async function estimateOf(purser: TestServer, tokens: number): Promise<string> {
  const bound = Number((await latest(purser))?.price.bound_prompt_tokens);
  return formatUsd(Nanos(BigInt(100_000 + bound * 1000 + tokens * 2000)));
}

/** Asserts that the latest operation was cancelled, and cost the prompt and so many tokens. */
export async function assertCancelled(purser: TestServer, gateway: Gateway, tokens: number): Promise<void> {
  await gateway.quiet();
  const operation = await latest(purser);
  assert.deepEqual([operation?.state, operation?.outcome, operation?.settled_by], ['settled', 'charged', 'cancelled']);
  assert.equal(operation?.charge_usd, await estimateOf(purser, tokens));
  const { holds, held_usd: held } = await purser.budget(gateway.token);
  assert.deepEqual([holds, held], [[], '0.00']);
  assert.deepEqual(purser.problems(), []);
}

/** A client reads so many events of a stream and leaves; the grace begins. */
export async function leaveAfter(
  count: number,
  { gateway, grace }: { gateway: Gateway; grace: HeldTimeouts },
  key?: string,
  body: object = {},
): Promise<void> {
  const before = grace.count();
  const stream = await gateway.stream(body, key);
  for (let i = 0; i < count; i++) await stream.next();
  stream.leave();
  await grace.set(before + 1);
}

/** A client that may leave before its headers. */
export function leaver(gateway: Gateway, key?: string, body: object = {}, path = '/chat/completions') {
  const controller = new AbortController();
  const asked = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100, stream: true, ...body };
  const answer = gateway.ask('POST', path, { key, body: asked, signal: controller.signal });
  answer.catch(() => {});
  return {
    async leave() {
      controller.abort();
      await assert.rejects(answer);
    },
  };
}

/** Returns what resolves when the next response is over: the server has seen that its client has gone. */
export function nextOver(t: TestContext, { app }: TestServer): () => Promise<boolean> {
  const release = t.mock.method(app.atOnce, 'release');
  const before = release.mock.callCount();
  return () => until('the client has gone', () => release.mock.callCount() > before);
}
