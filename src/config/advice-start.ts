import { isEverywhere, reachableUrl } from '../net/listen.ts';
import { adviceOnPrices } from './advice-router.ts';
import type { Config } from './config.ts';
import { unreadFiles } from './unread-files.ts';

const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|::1)$/;

/** Notes for the operator on the address that Purser listens on. They are not faults. */
function adviceOnListen({
  listen,
  public_url: publicUrl,
  tls,
}: Pick<Config, 'listen' | 'public_url' | 'tls'>): string[] {
  if (tls && publicUrl?.startsWith('http:'))
    return [`public_url: begins with http://, but Purser speaks https (tls): agents are given ${publicUrl}.`];
  if (publicUrl !== undefined || LOOPBACK.test(listen.host)) return [];
  const isAll = isEverywhere(listen.host);
  return [
    ...(isAll
      ? [
          `listen: ${listen.host} is no address that an agent could call, and public_url is not set: agents are given ${reachableUrl(listen, tls)}. Set public_url to the address at which they reach Purser.`,
        ]
      : []),
    ...(tls
      ? []
      : [
          'listen: over http:// tokens can be read on the network path. Set tls, or put a proxy with TLS before Purser and set public_url.',
        ]),
  ];
}

/** Returns the notes of `serve`, `config check` and `doctor` on settings that are probably not meant as they are. */
export const adviceOnStart = (config: Config): string[] => [
  ...unreadFiles(config),
  ...adviceOnListen(config),
  ...adviceOnPrices(config),
];
