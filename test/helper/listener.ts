import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';

/**
 * Returns a listener of a server of the tests that answers a request once its body is there. A request whose client goes away
 * before, as one that the test kills, is answered by nobody; without this it would end the file of the tests.
 */
export const whenRead =
  (answer: (request: IncomingMessage, response: ServerResponse, body: Buffer) => unknown): RequestListener =>
  async (request, response) => {
    const body = await request.toArray().then(
      (chunks) => Buffer.concat(chunks),
      () => undefined,
    );
    if (body) await answer(request, response, body);
  };
