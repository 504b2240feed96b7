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

/** Throws `read_only` while the books may not be served. */
export function refuseFault({ fault }: Pick<ServerHealth, 'fault'>): void {
  if (fault)
    throw new Refusal('read_only', `This installation is not served: ${fault}. Its operator runs \`purser doctor\`.`);
}
