import { parseJson } from '../base/parse-json.ts';
import { warning } from '../compute/finding.ts';
import type { UpstreamConfig } from '../config/router.ts';
import { readAnswerText } from '../net/read-bounded.ts';

const UPSTREAM_MILLISECONDS = 5000;
/** Status of model servers that have no list of models. */
const NOT_IMPLEMENTED = 501;
/** OpenRouter's list of all its models is smaller than 1 MiB. */
const LIST_BYTES_MAX = 16 * 1024 * 1024;

/** Explanations of failed connections, by error code. */
const HINTS: Record<string, string> = {
  ECONNREFUSED: ' Nothing listens there.',
  ENOTFOUND: ' There is no such host.',
  ERR_SSL_WRONG_VERSION_NUMBER: ' It speaks http://, not https://.',
  UND_ERR_SOCKET: ' It closed the connection: perhaps it speaks https://.',
};

/** An answer that shows a fault of the upstream, or of its settings. */
class BadAnswer extends Error {}

/** Asks an upstream for its models and passes its answer on. Throws if it cannot be reached, fails or refuses our key. */
export async function tryUpstream(
  { base_url: baseUrl, api_key: apiKey }: Pick<UpstreamConfig, 'base_url' | 'api_key'>,
  onModels: (models: unknown) => void,
): Promise<string> {
  const { request } = await import('../net/request.ts');
  try {
    const response = await request(`${baseUrl}/models`, {
      headers: apiKey ? { authorization: `Bearer ${apiKey.reveal()}` } : {},
      headersTimeout: UPSTREAM_MILLISECONDS,
      bodyTimeout: UPSTREAM_MILLISECONDS,
      signal: AbortSignal.timeout(UPSTREAM_MILLISECONDS),
    });
    const text = await readAnswerText(response.body, LIST_BYTES_MAX);
    const { statusCode: status } = response;
    if (status === 401 || status === 403)
      throw new BadAnswer(`${baseUrl} refuses our key (${status}). Check its api_key.`);
    if (status >= 500 && status !== NOT_IMPLEMENTED)
      throw new BadAnswer(
        `${baseUrl} answers ${status} to GET /models: it, or a proxy before it, does not work. Look at its log.`,
      );
    if (status === 429 || (status >= 300 && status < 400))
      return warning(
        `${baseUrl} answers ${status} to GET /models: ${status === 429 ? 'it takes no more requests at the moment' : 'it redirects, and chats do not follow. Set base_url to where it leads'}.`,
      );
    if (status === 404)
      return warning(
        `${baseUrl} answers 404 to GET /models: the path of its base_url may be wrong; most end in /v1. \`purser models check\` tells.`,
      );
    try {
      onModels(parseJson(text));
    } catch {} // Not every model server lists its models.
    return `${baseUrl} answers (GET /models: ${status})`;
  } catch (error) {
    if (error instanceof BadAnswer) throw error;
    const { code, message } = error as NodeJS.ErrnoException;
    const hint = code === undefined ? '' : (HINTS[code] ?? '');
    throw new Error(
      `${baseUrl} cannot be reached (${code ?? message}).${hint} Check its base_url and that it is running.`,
    );
  }
}
