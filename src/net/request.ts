import { Agent, type Dispatcher } from 'undici';
import { containedConnector } from './contained-connector.ts';

const CONNECT_MILLISECONDS = 10_000;
const agent = new Agent({ connect: containedConnector(CONNECT_MILLISECONDS) });

/** Sends one request. Throws the errors of undici; pass a `signal` that ends it in time. It follows no redirect. */
export const request = (
  url: string | URL,
  options: Omit<Dispatcher.RequestOptions, 'origin' | 'path' | 'method'> &
    Partial<Pick<Dispatcher.RequestOptions, 'method'>>,
): Promise<Dispatcher.ResponseData> => {
  const { origin, pathname, search } = new URL(url);
  return agent.request({ method: 'GET', ...options, origin, path: pathname + search });
};
