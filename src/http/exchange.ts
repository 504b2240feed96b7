import { IncomingMessage, ServerResponse } from 'node:http';
import { Socket } from 'node:net';
import type { Context } from 'hono';
import { reportFault } from '../base/fault.ts';
import { newId } from '../base/id.ts';
import { REFUSALS, Refusal, type RefusalCode } from '../base/refusal.ts';
import { resetConnection } from '../net/reset.ts';
import { joinCrumbs } from './crumbs.ts';
import type { Env } from './endpoint.ts';

/** Builds the response to a request that no route answers, with the body of its error. It ends the connection. */
export function lastAnswer(code: RefusalCode, requestId: string, error: object) {
  const body = JSON.stringify(error);
  return {
    status: REFUSALS[code].status as number,
    headers: {
      'content-type': 'application/json',
      'content-length': String(Buffer.byteLength(body)),
      'x-request-id': requestId,
      connection: 'close',
    },
    body,
  };
}

/**
 * A request of a client. An exception in a listener of any of its events ends this request and nothing else: the parser
 * emits most of them, and no caller above it could catch one (docs/decisions/0069).
 */
export class ContainedRequest extends IncomingMessage {
  response: ContainedResponse | undefined;
  #pushJoined: ReturnType<typeof joinCrumbs> | undefined;

  override push(piece: Buffer | null): boolean {
    if (this.headers['transfer-encoding'] === undefined) return super.push(piece);
    this.#pushJoined ??= joinCrumbs((it) => super.push(it));
    return this.#pushJoined(piece);
  }
  override emit(...event: Parameters<IncomingMessage['emit']>): boolean {
    try {
      return Reflect.apply(super.emit, this, event);
    } catch (error) {
      if (this.response) this.response.fail(error);
      else breakOff(this.socket, error);
      return true;
    }
  }
}

/**
 * The response to such a request. When Node refuses to write something, or a listener throws, it becomes a 500 if it has
 * not begun; otherwise its connection is ended. No caller above it can answer instead.
 */
export class ContainedResponse extends ServerResponse<ContainedRequest> {
  /** The id of the request, once it has one. */
  requestId: string | undefined;
  #hasFailed = false;

  constructor(request: ContainedRequest, ...options: unknown[]) {
    super(request, ...(options as []));
    request.response = this;
  }
  override emit(...event: Parameters<ServerResponse['emit']>): boolean {
    try {
      return Reflect.apply(super.emit, this, event);
    } catch (error) {
      this.fail(error);
      return true;
    }
  }
  override writeHead(...head: unknown[]): this {
    try {
      return Reflect.apply(super.writeHead, this, head);
    } catch (error) {
      this.fail(error);
      return this;
    }
  }
  override write(...piece: unknown[]): boolean {
    try {
      return Reflect.apply(super.write, this, piece);
    } catch (error) {
      this.fail(error);
      return false;
    }
  }
  override end(...piece: unknown[]): this {
    try {
      return Reflect.apply(super.end, this, piece);
    } catch (error) {
      this.fail(error);
      return this;
    }
  }

  /** Ends the request because of an unexpected error, and reports it. */
  fail(error: unknown): void {
    if (this.#hasFailed) return; // The code that writes to it may continue after the first failure.
    this.#hasFailed = true;
    this.requestId ??= newId('req');
    reportFault('request', error, { request_id: this.requestId });
    if (this.writableEnded) return; // Its client still gets it whole.
    if (this.headersSent) return void cutOff(this.req);
    try {
      const { code, message } = new Refusal('internal_error');
      const error = { error: { code, message }, request_id: this.requestId };
      const { status, headers, body } = lastAnswer(code, this.requestId, error);
      this.statusMessage = ''; // Node keeps the one that it has just refused.
      for (const name of this.getHeaderNames()) this.removeHeader(name);
      super.writeHead(status, headers);
      super.end(body);
    } catch {
      this.req.socket.destroy();
    }
  }
}

/** Ends the request or connection of a server event whose listener failed. */
export function endFaulty(error: unknown, about: readonly unknown[]): void {
  const request = about.find((it) => it instanceof ContainedRequest);
  if (request?.response) request.response.fail(error);
  else breakOff(request?.socket ?? about.find((it) => it instanceof Socket), error);
}

function breakOff(socket: Socket | undefined, error: unknown): void {
  reportFault('connection', error);
  socket?.destroy();
}

/**
 * Ends the connection of an answer that is not whole, and must not look so: in HTTP/1.0 the end of the connection may be that of the
 * answer, and only a reset is none. The reset is that of the connection below TLS, for which Node has no public name.
 */
export function cutOff({ socket, httpVersion }: IncomingMessage): void {
  const { _parent: below } = socket as Socket & { _parent?: Socket | null };
  if (httpVersion === '1.0') resetConnection(below ?? socket);
  else socket.destroy();
}

/** Calls `listener` when the response has been written or its client has disconnected; at once if that has happened. */
export function onceClosed({ env }: Context<Env>, listener: (isDelivered: boolean) => void): void {
  const response = env.outgoing as ServerResponse;
  const tell = () => listener(response.writableFinished);
  if (response.closed || response.destroyed) tell();
  else response.once('close', tell);
}
