import type { Finding } from '../compute/backend.ts';
import { finding } from '../compute/finding.ts';
import type { Config, Secrets } from '../config/config.ts';
import { files } from '../files/data-directory.ts';
import { askSocket } from '../operator/ask.ts';

/**
 * Other people's services that are configured: whether the issuer publishes its keys, the payment provider takes ours, and
 * an object can be moved, and whether its messages find our door. `now` is Unix seconds.
 */
export async function examineOutside(
  { identity, billing, transfer, publicUrl, dataDirectory }: Config,
  { billingKeys, transferKeys }: Secrets,
  installationId: string,
  now: number,
): Promise<Finding[]> {
  const looks: Promise<Finding>[] = [];
  if (identity)
    looks.push(
      finding('identity provider', async () => {
        const { tryIssuer } = await import('../access/issuer.ts');
        return tryIssuer(identity.issuer);
      }),
    );
  if (billing && billingKeys)
    looks.push(
      finding('payment provider', async () => {
        const { openStripe } = await import('../billing/stripe.ts');
        const stripe = openStripe(billing, billingKeys, { installationId });
        try {
          return await stripe.check();
        } finally {
          await stripe.close();
        }
      }),
    );
  if (billing && billingKeys && billingKeys.webhook_secrets.length > 0)
    looks.push(finding('payment webhook', () => tryWebhook(publicUrl, files(dataDirectory).socket)));
  if (transfer && transferKeys)
    looks.push(
      finding('transfer storage', async () => {
        const [{ createSigner }, { tryTransfer }] = await Promise.all([
          import('../transfer/object-url.ts'),
          import('../transfer/check.ts'),
        ]);
        return tryTransfer(transfer, createSigner(transfer, transferKeys), now);
      }),
    );
  return Promise.all(looks);
}

/** As far as it can be tried: there must be an address, and a server behind it. */
async function tryWebhook(publicUrl: string | undefined, socket: string): Promise<string> {
  if (publicUrl === undefined) return 'not tried: public_url is not set, so only you know under which address it is';
  const isServed = await askSocket(socket, 'ledger.head', {}).catch(() => true);
  if (!isServed) return `not tried: the server of ${publicUrl} is not running`;
  const { findWebhook } = await import('../billing/check.ts');
  return findWebhook(publicUrl);
}
