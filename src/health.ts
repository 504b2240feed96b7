/**
 * The server's state of health. `fault` is a sentence saying why the books may not be served; while there is one,
 * `readyz` is red and `/v1` answers 503.
 */
export type Health = {
  fault: string | undefined;
  /** A server listens; false for a command that opens the books by itself. */
  serving?: boolean;
  /** The server is stopping: clients should send no new requests. */
  stopping?: boolean;
};
