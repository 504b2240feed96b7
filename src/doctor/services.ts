import type { CheckFinding } from '../compute/backend.ts';
import { finding } from '../compute/finding.ts';
import type { Config } from '../config/config.ts';
import { files } from '../files/data-directory.ts';
import { askSocket } from '../operator/ask.ts';

/**
 * Checks the configured third-party services: that the issuer publishes its keys, the payment provider accepts our key, its
 * webhooks can reach us, and an object makes the round trip through the transfer storage. `now` is in Unix seconds.
 */
export async function examineServices(
  { identity, billing, transfer, public_url: publicUrl, dataDirectory }: Config,
  installationId: string,
  now: number,
): Promise<CheckFinding[]> {
  const checks: Promise<CheckFinding>[] = [];
  if (identity)
    checks.push(
      finding('identity provider', async () => {
        const { tryIssuer } = await import('../access/issuer.ts');
        return tryIssuer(identity.issuer);
      }),
    );
  if (billing)
    checks.push(
      finding('payment provider', async () => {
        const { openStripe } = await import('../billing/stripe.ts');
        const stripe = openStripe(billing, { installationId });
        try {
          return await stripe.check();
        } finally {
          await stripe.close();
        }
      }),
    );
  if (billing?.stripe.webhook_secrets.length)
    checks.push(finding('payment webhook', () => tryWebhook(publicUrl, files(dataDirectory).socket)));
  if (transfer)
    checks.push(
      finding('transfer storage', async () => {
        const [{ createSigner }, { tryTransfer }] = await Promise.all([
          import('../transfer/object-url.ts'),
          import('../transfer/check.ts'),
        ]);
        return tryTransfer(transfer, createSigner(transfer), now);
      }),
    );
  return Promise.all(checks);
}

/** Checks that a webhook reaches this server. That can only be tried with a public address and a running server. */
async function tryWebhook(publicUrl: string | undefined, socket: string): Promise<string> {
  if (publicUrl === undefined) return 'not tried: public_url is not set, so its public address is unknown';
  const isServed = await askSocket(socket, 'ledger.head', {}).catch(() => true);
  if (!isServed) return `not tried: the server of ${publicUrl} is not running`;
  const { findWebhook } = await import('../billing/check.ts');
  return findWebhook(publicUrl);
}
