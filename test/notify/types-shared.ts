import type { EventType } from '../../src/db/enums.ts';
import type { TestServer, TestServerOptions } from '../helper/server.ts';

export const SECRET = 'a signing secret of a test';

/** The data of the events of a type, oldest first, without what other tests look at. */
export async function told(purser: TestServer, type: EventType, wallet?: string): Promise<Record<string, any>[]> {
  const { events } = await purser.run('events.list', { type, wallet });
  return events.map(({ data }) => data).reverse();
}

export const withEvents = (events: object, options: TestServerOptions = {}): TestServerOptions => ({
  ...options,
  settings: { events, ...options.settings },
});
