import type { Finding } from './compute/backend.ts';
import { finding } from './compute/finding.ts';
import type { Config, Secrets } from './config.ts';

/**
 * Other people's services that are configured: whether the issuer publishes its keys, the payment provider takes ours, and
 * an object can be moved. `now` is Unix seconds.
 */
export async function examineOutside(
  { identity, billing, transfer }: Config,
  { billingKeys, transferKeys }: Secrets,
  installationId: string,
  now: number,
): Promise<Finding[]> {
  const looks: Promise<Finding>[] = [];
  if (identity)
    looks.push(
      finding('identity provider', async () => {
        const { tryIssuer } = await import('./access/issuer.ts');
        return tryIssuer(identity.issuer);
      }),
    );
  if (billing && billingKeys)
    looks.push(
      finding('payment provider', async () => {
        const { openStripe } = await import('./billing/stripe.ts');
        const stripe = openStripe(billing, billingKeys, { installationId });
        try {
          return await stripe.check();
        } finally {
          await stripe.close();
        }
      }),
    );
  if (transfer && transferKeys)
    looks.push(
      finding('transfer storage', async () => {
        const [{ createSigner }, { tryTransfer }] = await Promise.all([
          import('./transfer/object-url.ts'),
          import('./transfer/check.ts'),
        ]);
        return tryTransfer(transfer, createSigner(transfer, transferKeys), now);
      }),
    );
  return Promise.all(looks);
}
