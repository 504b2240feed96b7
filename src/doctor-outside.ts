import type { Finding } from './compute/backend.ts';
import { finding } from './compute/finding.ts';
import type { Config, Secrets } from './config.ts';
import { files } from './data-directory.ts';
import { askSocket } from './operator/ask.ts';

const CALL_MILLISECONDS = 5000;

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
  if (billing && billingKeys && billingKeys.webhook_secrets.length > 0)
    looks.push(finding('payment webhook', () => tryWebhook(publicUrl, files(dataDirectory).socket)));
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

/**
 * Whether the public address leads to the door that takes the payment provider's messages, as far as that can be seen from
 * here: it answers 405 to whoever only reads. Nothing is sent that a message could be taken for.
 */
async function tryWebhook(publicUrl: string | undefined, socket: string): Promise<string> {
  if (publicUrl === undefined) return 'not tried: public_url is not set, so only you know under which address it is';
  const at = `${publicUrl.replace(/\/$/, '')}/webhooks/stripe`;
  const isServed = await askSocket(socket, 'ledger.head', {}).catch(() => true);
  if (!isServed) return `not tried: the server of ${at} is not running`;
  const { request } = await import('undici');
  const remedy = 'Purser asks Stripe itself meanwhile. Check public_url, the proxy before it, and its certificate.';
  const answer = await request(at, { signal: AbortSignal.timeout(CALL_MILLISECONDS) }).catch((error: Error) => {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new Error(`${at} cannot be reached from here (${code ?? message}). ${remedy}`);
  });
  await answer.body.dump();
  const { allow, 'x-request-id': requestId } = answer.headers;
  if (answer.statusCode === 405 && allow === 'POST' && requestId !== undefined) return `${at} leads here`;
  throw new Error(`${at} answers ${answer.statusCode}, which is not this server's door for messages. ${remedy}`);
}
