/** Whether the books may be served. A fault is a sentence; while there is one, `readyz` is red and `/v1` answers 503. */
export type Health = {
  fault: string | undefined;
  /** The server is stopping: every answer is the last one on its connection. */
  stopping?: boolean;
};
