import type { Guest, Ref } from '../../backend.ts';
import { onOneLine } from '../../kit/one-line.ts';
import { IMAGE_ROOTS, ROOTS_BYTES_MAX, trustFiles } from '../../kit/trust.ts';
import { TRUST } from './describe.ts';

const READ_SECONDS = 15;
const PRINT_ROOTS = `for roots in ${IMAGE_ROOTS.join(' ')}; do
  if [ -s "$roots" ]; then exec cat "$roots"; fi
done`;

/**
 * Puts the authority of a lease's secrets into a pod, beside the roots of its image. The API puts no file into a pod, so programs
 * inside do, before a tenant is there.
 */
export async function putTrust({ exec, upload }: Guest, tag: Ref, authority: string): Promise<void> {
  const order = { command: PRINT_ROOTS, timeoutSeconds: READ_SECONDS, streamBytesMax: ROOTS_BYTES_MAX };
  const { exitCode, stdout, stderr, stdoutTruncated } = await exec(tag, order);
  if (exitCode !== 0) throw new Error(`the roots of the image cannot be read: ${onOneLine(String(stderr))}`);
  if (stdoutTruncated) throw new Error('the roots of the image are too large');
  for (const { path, content } of trustFiles({ authority }, stdout.length ? stdout : undefined, TRUST))
    await upload(tag, path, content);
}
