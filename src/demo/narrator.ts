// biome-ignore lint/suspicious/noExplicitAny: the demo reads answers as any client would.
export type Response = { status: number; replayed: boolean; body: any };

/** Prints the scenario step by step, calls the server over HTTP, and compares every figure with an independent calculation. */
export type Narrator = {
  step(title: string): void;
  /** Prints a line that is not checked. */
  note(line: string): void;
  /** Compares a figure of the last answer. One that is missing because that was an error is printed with it. */
  check(what: string, actual: unknown, expected: unknown): void;
  ask(method: string, path: string, token: string, body?: object, key?: string): Promise<Response>;
  /** Returns how many figures differed from the calculation. */
  wrong(): number;
};

/** Creates a narrator. `signal` aborts every request. */
export function createNarrator(baseUrl: string, print: (line: string) => void, signal: AbortSignal): Narrator {
  let steps = 0;
  let wrong = 0;
  let last: Response | undefined;
  function errorOf({ status, body }: Response): string {
    return body?.error ? `: ${status} ${body.error.code}: ${body.error.message}` : '';
  }
  return {
    step: (title) => print(`\n${++steps}. ${title}`),
    note: (line) => print(`    ${line}`),
    check(what, actual, expected) {
      const same = JSON.stringify(actual) === JSON.stringify(expected);
      if (!same) wrong++;
      const error = actual === undefined && last ? errorOf(last) : '';
      print(`  ${same ? '✓' : '✗'} ${what}: ${actual}${same ? '' : ` (arithmetic says ${expected})${error}`}`);
    },
    async ask(method, path, token, body, key) {
      const response = await fetch(baseUrl + path, {
        method,
        signal,
        headers: {
          authorization: `Bearer ${token}`,
          ...(body ? { 'content-type': 'application/json' } : {}),
          ...(key ? { 'idempotency-key': key } : {}),
        },
        ...(body ? { body: JSON.stringify(body) } : {}),
      });
      const replayed = response.headers.get('idempotent-replayed') === 'true';
      last = { status: response.status, replayed, body: await response.json() };
      return last;
    },
    wrong: () => wrong,
  };
}
