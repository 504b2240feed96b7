import http from 'node:http';
import https from 'node:https';
import { openLine } from '../helper/line.ts';
import type { Answer, TestServer } from '../helper/server.ts';

export type RawAsked = {
  token?: string;
  headers?: Record<string, string>;
  /** What is written. With `content-length` among the headers it goes as it is, otherwise in chunks. */
  body?: Buffer | string;
  /** Leaves the request without its end: the answer has to come before it. */
  unfinished?: boolean;
};

/** Sends exactly what it is told on a connection of its own, where a proper client would correct or refuse it. */
export function sendRaw(purser: TestServer, method: string, path: string, asked: RawAsked = {}): Promise<Answer> {
  const { host, port } = purser.app.address;
  const send = purser.url.startsWith('https:') ? https.request : http.request;
  const headers = { ...(asked.token ? { authorization: `Bearer ${asked.token}` } : {}), ...asked.headers };
  return new Promise((resolve, reject) => {
    const request = send(
      { host, port, method, path, headers, agent: false, rejectUnauthorized: false } as http.RequestOptions,
      (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('error', reject);
        response.on('end', () => {
          request.destroy();
          resolve(toAnswer(response, Buffer.concat(chunks).toString()));
        });
      },
    );
    request.on('error', reject);
    request.flushHeaders();
    if (asked.body !== undefined) request.write(asked.body);
    if (!asked.unfinished) request.end();
  });
}

function toAnswer(response: http.IncomingMessage, text: string): Answer {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {}
  return { status: response.statusCode ?? 0, headers: response.headers, body, text };
}

/** Writes text as it is on a connection of its own, and returns the answers that came until the server ended it. */
export async function sendText(purser: TestServer, ...pieces: string[]): Promise<Answer[]> {
  const line = await openLine(purser.url);
  for (const piece of pieces) line.write(piece);
  await line.ended;
  return answersIn(line.text());
}

/** Returns the answers in what came back on a connection; each has a Content-Length or is the last. */
export function answersIn(text: string): Answer[] {
  const answers: Answer[] = [];
  let rest = text;
  while (rest) {
    const end = rest.indexOf('\r\n\r\n');
    const [first = '', ...lines] = rest.slice(0, end).split('\r\n');
    const headers = Object.fromEntries(
      lines.map((it) => [it.slice(0, it.indexOf(':')).toLowerCase(), it.slice(it.indexOf(':') + 1).trim()]),
    );
    const status = Number(/^HTTP\/1\.1 (\d{3}) /.exec(first)?.[1]);
    const length = status < 200 ? 0 : Number(headers['content-length'] ?? Number.POSITIVE_INFINITY);
    const body = rest.slice(end + 4, end + 4 + length);
    answers.push(toAnswer({ statusCode: status, headers } as unknown as http.IncomingMessage, body));
    rest = rest.slice(end + 4 + length);
  }
  return answers;
}
