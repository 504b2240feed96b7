import { request } from 'undici';

const CALL_MILLISECONDS = 5000;
const REMEDY = 'Purser asks Stripe itself meanwhile. Check public_url, the proxy before it, and its certificate.';

/**
 * Whether the public address leads to the door that takes the payment provider's messages, as far as that can be seen from
 * here: that door answers 405 to whoever only reads. Nothing is sent that could be taken for a message. Throws what is
 * wrong, and what to do.
 */
export async function findWebhook(publicUrl: string): Promise<string> {
  const at = `${publicUrl.replace(/\/$/, '')}/webhooks/stripe`;
  const answer = await request(at, { signal: AbortSignal.timeout(CALL_MILLISECONDS) }).catch((error: Error) => {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new Error(`${at} cannot be reached from here (${code ?? message}). ${REMEDY}`);
  });
  await answer.body.dump();
  const { allow, 'x-request-id': requestId } = answer.headers;
  if (answer.statusCode === 405 && allow === 'POST' && requestId !== undefined) return `${at} leads here`;
  throw new Error(`${at} answers ${answer.statusCode}, which is not this server's door for messages. ${REMEDY}`);
}
