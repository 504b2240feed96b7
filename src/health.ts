/** Whether the books may be served. A fault is a sentence; while there is one, `readyz` is red and `/v1` answers 503. */
export type Health = {
  fault: string | undefined;
  /** The server is stopping: nobody should send it anything new. */
  stopping?: boolean;
};
