import { Refusal } from './refusal.ts';

/**
 * The server's state of health. `fault` is a sentence saying why the books may not be served; while there is one,
 * `readyz` is red and `/v1` answers 503.
 */
export type ServerHealth = {
  fault: string | undefined;
  /** A server listens; false for a command that opens the books by itself. */
  serving?: boolean;
  /** The server is stopping: clients should send no new requests. */
  stopping?: boolean;
};

const WATCH_MILLISECONDS = 250;

/** Calls `act` when the server stops, until it is disposed: what waits for long gives way to the stop. */
export function whenStopping(health: Pick<ServerHealth, 'stopping'>, act: () => void): Disposable {
  const watch = setInterval(() => {
    if (health.stopping) act();
  }, WATCH_MILLISECONDS);
  return { [Symbol.dispose]: () => clearInterval(watch) };
}

/** Throws `read_only` while the books may not be served. */
export function refuseFault({ fault }: Pick<ServerHealth, 'fault'>): void {
  if (fault)
    throw new Refusal('read_only', `This installation is not served: ${fault}. Its operator runs \`purser doctor\`.`);
}
