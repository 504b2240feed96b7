import { isEverywhere, reachableUrl } from '../net/listen.ts';
import { adviceOnPrices } from './advice-router.ts';
import type { Config } from './config.ts';
import { unreadFiles } from './unread-files.ts';

const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|::1)$/;

/** Notes for the operator on the address that Purser listens on. They are not faults. */
function adviceOnListen({ listen, public_url: publicUrl }: Pick<Config, 'listen' | 'public_url'>): string[] {
  if (publicUrl !== undefined || LOOPBACK.test(listen.host)) return [];
  const isAll = isEverywhere(listen.host);
  return [
    ...(isAll
      ? [
          `listen: ${listen.host} is no address that an agent could call, and public_url is not set: agents are given ${reachableUrl(listen)}. Set public_url to the address at which they reach Purser.`,
        ]
      : []),
    `listen: over http:// tokens can be read on the network path. Put a proxy with TLS before Purser and set public_url.`,
  ];
}

/** Returns the notes of `serve`, `config check` and `doctor` on settings that are probably not meant as they are. */
export const adviceOnStart = (config: Config): string[] => [
  ...unreadFiles(config),
  ...adviceOnListen(config),
  ...adviceOnPrices(config),
];
