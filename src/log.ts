import { type Logger, pino } from 'pino';
import { visible } from './visible.ts';

export type Log = Logger;
export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

// Our own tokens, and prefixes of a payment provider's secrets: a person may paste one in the wrong place.
const TOKEN = /(cnv_live_|cnv_operator_|svc_agent_|svc_router_|[rs]k_(?:live|test)_|whsec_)[0-9A-Za-z]{8,}/g;
// No backslash: in a line of JSON it may escape the quote behind it.
const BEARER = /(bearer\s+)[^\s"',\\]+/gi;

/** A signed token of an identity provider, or as much of it as a truncated sentence has left. */
const JWT = /\beyJ[\w-]{8,}(?:\.[\w-]*){0,2}/g;

/** Redacts our own tokens and all signed tokens. */
export function redactTokens(text: string): string {
  return text.replace(TOKEN, '$1[redacted]').replace(JWT, '[redacted]');
}

/** Redacts like `redactTokens`, and also whatever follows the word bearer. */
export function redact(text: string): string {
  return redactTokens(text).replace(BEARER, '$1[redacted]');
}

/**
 * Creates the logger: JSON lines on stderr, written synchronously, so that the last line before a crash is there.
 * Tokens are redacted here, where the logger is made, and not where it is called. `secrets` are literal strings that
 * must never appear, such as upstream keys and the master key.
 */
export function createLog(level: LogLevel, secrets: readonly string[] = [], write = writeStderr): Log {
  const literal = secrets.filter((secret) => secret.length >= 4);
  return pino(
    { level, base: null, timestamp: () => `,"time":"${new Date().toISOString()}"` },
    {
      write(line: string) {
        let text = visible(redact(line));
        for (const secret of literal) if (text.includes(secret)) text = text.replaceAll(secret, '[redacted]');
        write(text);
      },
    },
  );
}

const stderr = pino.destination({ dest: 2, sync: true });
function writeStderr(text: string): void {
  stderr.write(text);
}
