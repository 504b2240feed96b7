import http from 'node:http';
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
  const headers = { ...(asked.token ? { authorization: `Bearer ${asked.token}` } : {}), ...asked.headers };
  return new Promise((resolve, reject) => {
    const request = http.request({ host, port, method, path, headers, agent: false }, (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('error', reject);
      response.on('end', () => {
        request.destroy();
        resolve(toAnswer(response, Buffer.concat(chunks).toString()));
      });
    });
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
