import type { IncomingMessage } from 'node:http';
import type Docker from 'dockerode';
import { readJsonAnswer } from '../../../net/json-answer.ts';
import { BROKEN_OFF } from './connection.ts';

/** A list of some ten thousand containers. */
const ANSWER_BYTES_MAX = 64 * 1024 * 1024;

/** The error that docker-modem throws for an answer with a status that the call does not expect. */
type Unexpected = Error & { statusCode: number; reason: unknown; json: unknown };

/** Accepts every status: the code here decides which of them are errors. */
const ALL_STATUSES = Object.fromEntries(Array.from({ length: 500 }, (_, i) => [i + 100, true]));

/**
 * Reads the answers to all calls that end with one as they come, with limits. docker-modem itself would collect whatever an engine
 * sends, and parse it at once. An answer that is not JSON counts as none.
 */
export function readAnswersInTurns(modem: Docker['modem']): void {
  const dial = modem.dial.bind(modem);
  modem.dial = (options, callback) => {
    if (!callback || options.hijack || options.openStdin) return dial(options, callback);
    const statuses: Record<number, unknown> = options.statusCodes ?? {};
    const read = async (answer: IncomingMessage): Promise<object> => {
      const { json, beginning } = await readJsonAnswer(answer, ANSWER_BYTES_MAX).catch((cause) => {
        throw cause.code === 'ECONNRESET' ? new Error(BROKEN_OFF, { cause }) : cause;
      });
      const status = answer.statusCode as number;
      if (statuses[status] === true) return json as object;
      throw unexpected(status, statuses[status], json, beginning);
    };
    dial({ ...options, isStream: true, statusCodes: ALL_STATUSES }, (error, answer) => {
      const { statusCode = 0 } = (answer ?? {}) as IncomingMessage;
      if (error || (options.isStream && statuses[statusCode] === true)) callback(error, answer);
      // Errors that dockerode throws for an unexpected answer would be uncaught.
      else
        read(answer as IncomingMessage)
          .then((json) => callback(null, json))
          .catch((problem) => callback(problem, null));
    });
  };
}

function unexpected(status: number, reason: unknown, json: unknown, beginning: string): Unexpected {
  const { message, error } = Object(json) as { message?: unknown; error?: unknown };
  const body = [message, error].find((it) => typeof it === 'string' && it) ?? beginning;
  const what = `(HTTP code ${status}) ${reason ?? 'unexpected'} - ${body} `;
  return Object.assign(new Error(what), { statusCode: status, reason, json });
}
