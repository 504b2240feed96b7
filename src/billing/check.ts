import { request } from '../net/request.ts';

const CALL_MILLISECONDS = 5000;
const REMEDY = 'Purser polls Stripe meanwhile. Check public_url, the proxy in front of it, and its certificate.';

/**
 * Checks, as far as possible from here, that the public URL leads to this server's webhook endpoint, which answers a GET with 405.
 * Sends no possible event. Throws an error with the cause and the remedy.
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
  throw new Error(`${at} answers ${answer.statusCode}, which is not this server's webhook endpoint. ${REMEDY}`);
}
