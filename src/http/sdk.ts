import type { Context } from 'hono';
import { assetText } from '../files/asset.ts';
import { type Env, requestIdOf } from './endpoint.ts';

/**
 * The clients for agents, one file each, as an agent in a sandbox without a package registry fetches them: without a credential, since
 * they are the same everywhere. `build.mjs` puts them into the executable.
 */
const FILES = {
  '/sdk/purser.py': ['sdk/python/purser.py', 'text/x-python; charset=utf-8'],
  '/sdk/purser.mjs': ['sdk/javascript/purser.mjs', 'text/javascript; charset=utf-8'],
  '/sdk/purser.d.mts': ['sdk/javascript/purser.d.mts', 'text/plain; charset=utf-8'],
} as const;

/** Returns the handlers of the clients' files by their paths. Each file is read when it is first asked for. */
export const sdkFiles = (): Record<string, (c: Context<Env>) => Response> =>
  Object.fromEntries(
    Object.entries(FILES).map(([path, [name, type]]) => {
      let text: string | undefined;
      return [
        path,
        (c: Context<Env>) => {
          text ??= assetText(name);
          const headers = {
            'content-type': type,
            'cache-control': 'no-cache',
            'x-content-type-options': 'nosniff',
            'x-request-id': requestIdOf(c),
          };
          return new Response(text, { headers });
        },
      ];
    }),
  );
