import type { Context, Handler } from 'hono';
import type { Provider } from '../billing/provider.ts';
import { receive } from '../billing/receive.ts';
import { Refusal } from '../refusal.ts';
import { readBody } from './body.ts';
import { callerNetwork, type Env, type HttpApp, requestIdOf } from './endpoint.ts';

/** Stripe's own are a few KiB. */
const WEBHOOK_BYTES_MAX = 256 * 1024;

/**
 * `POST /webhooks/stripe`: what the payment provider tells of its own accord. It carries no token: its signature over the
 * bytes as they came is the proof, so nothing is parsed before that. It is 200 only when what it changed is on disk; of
 * anything else the provider tells again.
 */
export function stripeWebhook(app: HttpApp, payments: Provider): Handler<Env> {
  return async function handle(c: Context<Env>) {
    const { incoming } = c.env;
    const requestId = requestIdOf(c);
    if (app.health.fault) throw new Refusal('read_only', `This installation is not served: ${app.health.fault}`);
    const network = callerNetwork(app, incoming);
    app.limits.webhook.take(network);
    const share = app.memory.open(network);
    try {
      const bytes = await readBody(incoming, WEBHOOK_BYTES_MAX, share);
      const signature = c.req.header('stripe-signature');
      const event = opened(() => payments.open(bytes, signature, app.clock.now()), app, requestId);
      await receive(app, event);
    } finally {
      share.close();
    }
    return new Response('{"received":true}', {
      headers: { 'content-type': 'application/json', 'x-request-id': requestId },
    });
  };
}

/** Whatever is wrong with a message, its sender hears no more than that. */
function opened<T>(open: () => T, app: HttpApp, requestId: string): T {
  try {
    return open();
  } catch (cause) {
    app.events.webhookRefused(requestId, cause);
    throw new Refusal('invalid_request', undefined, { cause });
  }
}
