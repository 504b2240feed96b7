import type { Tenant } from '../ledger/tenant.ts';
import { isLarge } from '../router/apart.ts';
import type { Catalogue } from '../router/catalogue.ts';
import { measuredFor } from '../router/measure.ts';
import { NUMBER_BYTES, VALUE_BYTES } from './body.ts';
import type { Allowance } from './memory-quota.ts';
import { forwardedOf, type ModelRequest, type ReadOrder, readModelRequest } from './model-request.ts';
import { asBuffer, createReadingThread, type ReadingThread } from './reading-thread.ts';

/**
 * Reads the bodies of requests to models: small ones at once, large ones one by one in a worker thread, where tenants take
 * turns.
 */
export type ModelRequests = {
  /**
   * Throws as `readModelRequest` does, and `rate_limited` when `share` is used up. The caller must not use a large body
   * afterwards. Bodies of one tenant wait for each other, and other tenants have a turn between two of them.
   */
  read(bytes: Buffer, order: ReadOrder, share: Allowance, tenant: Tenant): ModelRequest | Promise<ModelRequest>;
  close(): Promise<void>;
};

/** Creates the reader. `catalogue` returns the one in force, which changes while the server runs. */
export function createModelRequests(
  catalogue: () => Catalogue,
  thread: ReadingThread = createReadingThread(),
): ModelRequests {
  const find = (id: string) => {
    const model = catalogue().get(id);
    return model && measuredFor(model);
  };

  async function readApart(bytes: Buffer, order: ReadOrder, tenant: Tenant): Promise<ModelRequest> {
    const own = bytes.length === bytes.buffer.byteLength ? bytes : Buffer.copyBytesFrom(bytes);
    const models = () => catalogue().list.map((model) => [model.id, measuredFor(model)] as const);
    const request = await thread.ask(() => ({ ...order, bytes: own, models: models() }), tenant);
    return withBuffers(request as ModelRequest);
  }

  return {
    read(bytes, order, share, tenant) {
      if (isLarge(bytes)) return readApart(bytes, order, tenant);
      return readModelRequest(bytes, order, find, ({ values, numbers }) =>
        share.take(values * VALUE_BYTES + numbers * NUMBER_BYTES),
      );
    },
    close: () => thread.close(),
  };
}

function withBuffers(request: ModelRequest): ModelRequest {
  if (request.invalid) return request;
  request.fingerprint = asBuffer(request.fingerprint);
  for (const it of forwardedOf(request)) it.bytes = asBuffer(it.bytes);
  return request;
}
