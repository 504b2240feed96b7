import type { Context, Handler } from 'hono';
import { refuseFault } from '../base/health.ts';
import { Refusal } from '../base/refusal.ts';
import type { Provider } from '../billing/provider.ts';
import { receive } from '../billing/receive.ts';
import { readBody } from './body.ts';
import { callerNetwork } from './caller.ts';
import { type Env, type HttpApp, requestIdOf } from './endpoint.ts';

/** The largest webhook body. Stripe's are a few KiB. */
const WEBHOOK_BYTES_MAX = 256 * 1024;

/**
 * Handles `POST /webhooks/stripe`, the payment provider's notifications. They carry no token: the signature over the raw bytes
 * authenticates them, and is verified before any parsing. Answers 200 only once the change is on disk; the provider sends
 * everything else again.
 */
export function stripeWebhook(app: HttpApp, payments: Provider): Handler<Env> {
  return async function handle(c: Context<Env>) {
    const { incoming } = c.env;
    const requestId = requestIdOf(c);
    refuseFault(app.health);
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

/** Logs the fault of a message; its sender only sees `invalid_request`. */
function opened<T>(open: () => T, app: HttpApp, requestId: string): T {
  try {
    return open();
  } catch (cause) {
    app.events.webhookRefused(requestId, cause);
    throw new Refusal('invalid_request', undefined, { cause });
  }
}
