import { randomBytes } from 'node:crypto';
import type { TransferSettings } from '../config/services.ts';
import { readAnswerText } from '../net/read-bounded.ts';
import { request } from '../net/request.ts';
import type { ObjectMethod, Signer } from './object-url.ts';

const CALL_MILLISECONDS = 10_000;
const SECONDS = 60;
const ANSWER_BYTES_MAX = 64 * 1024;
const ERROR_CHARACTERS_MAX = 300;

/**
 * Checks transfer storage with a real PUT, GET and DELETE of a small object and an unsigned GET, as a signature alone proves
 * nothing about the bucket. Returns the finding; throws an error with the cause and the remedy.
 */
export async function tryTransfer(settings: TransferSettings, signer: Signer, now: number): Promise<string> {
  const key = `purser-doctor/${randomBytes(8).toString('hex')}`;
  const content = randomBytes(32).toString('hex');
  async function ask(method: ObjectMethod, url: string, body?: string): Promise<{ status: number; text: string }> {
    try {
      const signal = AbortSignal.timeout(CALL_MILLISECONDS);
      const response = await request(url, { method, body: body ?? null, signal });
      return { status: response.statusCode, text: await readAnswerText(response.body, ANSWER_BYTES_MAX) };
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      throw new Error(`${settings.endpoint} cannot be reached (${code ?? message}). Check transfer.endpoint.`);
    }
  }
  async function call(method: ObjectMethod, body?: string): Promise<string> {
    const { status, text } = await ask(method, await signer.sign(method, key, now, SECONDS), body);
    if (status < 300) return text;
    throw new Error(`${method} answered ${status}: ${sentenceIn(text)}. ${remedy(status)}`);
  }

  await call('PUT', content);
  let read: string;
  let isOpen: boolean;
  try {
    read = await call('GET');
    const [unsigned] = (await signer.sign('GET', key, now, SECONDS)).split('?');
    isOpen = (await ask('GET', unsigned as string)).status < 300;
  } finally {
    await call('DELETE');
  }
  if (read !== content)
    throw new Error('The object read back differs from the one written. Does the address lead to another bucket?');
  if (isOpen) throw new Error(`Anybody may read ${settings.bucket} without a signature. Close it to the public.`);
  return `PUT, GET and DELETE of an object in ${settings.bucket} work, and nobody reads it unsigned`;
}

/** Returns the code and message of an S3 XML error as one line. */
function sentenceIn(xml: string): string {
  const part = (name: string) => new RegExp(`<${name}>([^<]*)</${name}>`).exec(xml)?.[1];
  const summary = [part('Code'), part('Message')].filter(Boolean).join(', ') || xml;
  return summary.replace(/\s+/g, ' ').slice(0, ERROR_CHARACTERS_MAX) || 'no words';
}

function remedy(status: number): string {
  if (status === 403) return 'Check access_key_id, secret_access_key, region, what the key may do, and both clocks.';
  if (status === 301 || status === 307) return 'The bucket is elsewhere. Check region and endpoint.';
  if (status === 404) return 'Is there a bucket of this name, and is path_style right?';
  return 'Check transfer in purser.yaml.';
}
