import { formatUsd, Nanos } from '../base/money.ts';
import type { CheckFinding } from '../compute/backend.ts';
import { findDiskLimits } from '../compute/engines/container/disk-advice.ts';
import { note } from '../compute/finding.ts';
import { findUnenforced } from '../compute/settings.ts';
import type { Config } from '../config/config.ts';
import { routesOf } from '../config/router.ts';
import { isLive } from '../config/services.ts';
import { unreadFiles } from '../config/unread-files.ts';
import { isEverywhere, reachableUrl } from '../net/listen.ts';
import { priceOf } from '../router/catalogue.ts';

/** CheckFindings on settings that are valid and probably not meant as they are. A fault has kept them from being read at all. */

const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)$/;
const isOpen = (address: string) => {
  const { protocol, hostname } = new URL(address);
  return protocol === 'http:' && !LOOPBACK.test(hostname);
};

/** Returns the finding that the settings could be read, and from which file. */
export const findSettings = ({ file }: Pick<Config, 'file'>): CheckFinding => ({
  name: 'configuration',
  ok: true,
  detail: file ?? 'no file: every setting has its default',
});

/** Returns the findings of `serve` and `doctor`: files that are not read, an address for agents, prices of another unit. */
export const examineStart = (config: Config): CheckFinding[] => [
  ...unreadFiles(config).map((text) => note('configuration', text)),
  ...examineListen(config),
  ...examinePrices(config),
];

/** Returns all findings on the settings, for `config check`. Asks container engines whether they limit disks. */
export const examineSettings = async (config: Config): Promise<CheckFinding[]> => [
  findSettings(config),
  ...examineStart(config),
  ...examineModelLimits(config),
  ...findUnenforced(config.compute),
  ...(await findDiskLimits(config.compute)),
  ...examineAddresses(config),
];

function examineListen({
  listen,
  public_url: publicUrl,
  tls,
}: Pick<Config, 'listen' | 'public_url' | 'tls'>): CheckFinding[] {
  if (tls && publicUrl?.startsWith('http:'))
    return [note('public_url', `begins with http://, but Purser speaks https (tls): agents are given ${publicUrl}.`)];
  if (publicUrl !== undefined || LOOPBACK.test(listen.host)) return [];
  const isAll = isEverywhere(listen.host);
  return [
    ...(isAll
      ? [
          note(
            'listen',
            `${listen.host} is no address that an agent could call, and public_url is not set: agents are given ${reachableUrl(listen, tls)}. Set public_url to the address at which they reach Purser.`,
          ),
        ]
      : []),
    ...(tls
      ? []
      : [
          note(
            'listen',
            'over http:// tokens can be read on the network path. Set tls, or put a proxy with TLS before Purser and set public_url.',
          ),
        ]),
  ];
}

/** Nano-USD per million tokens beyond which a price is suspect: in 2026 models cost between 0.01 and 600 USD. */
const DEAR = 1_000n * 10n ** 9n;
const CHEAP = 10n ** 6n;

/** Finds prices of a token that look like those of a million tokens, and the other way round. */
function examinePrices({ router }: Pick<Config, 'router'>): CheckFinding[] {
  return router.models.flatMap((model) => {
    const { id } = model;
    const { pool, fallbacks } = routesOf(model);
    return [model, ...pool, ...fallbacks].flatMap(({ pricing, pricing_per_million: million }) =>
      (['prompt', 'completion'] as const).flatMap((rate) => {
        const price = (pricing ?? million)?.[rate];
        if (!price || (pricing ? price <= DEAR : price >= CHEAP)) return [];
        const [unit, setting] = pricing ? ['a million tokens', 'pricing_per_million'] : ['one token', 'pricing'];
        const cost = `${rate} costs ${formatUsd(Nanos(price))} USD per million tokens`;
        return note(`router.models ${id}`, `${cost}. If the price is meant for ${unit}, it belongs under ${setting}.`);
      }),
    );
  });
}

/** Finds limits of models that leave no room for a prompt or an answer. */
function examineModelLimits({ router }: Pick<Config, 'router'>): CheckFinding[] {
  return router.models.flatMap((model): CheckFinding[] => {
    const { id, context_length: context, max_output_tokens: max = 0 } = model;
    const { pool, fallbacks } = routesOf(model);
    const shortest = Math.min(context, ...[...pool, ...fallbacks].map((it) => it.context_length ?? context));
    const standard = model.default_output_tokens ?? 0;
    const details: [isSo: boolean | undefined, detail: string][] = [
      [!priceOf(model), 'it has no price, so it is not offered'],
      [
        max >= shortest,
        `max_output_tokens ${max} leaves no room for a prompt in a context_length of ${shortest}: prompt and answer share it`,
      ],
      [
        standard < max && standard >= shortest,
        `default_output_tokens ${standard} leaves no room for a prompt in a context_length of ${shortest}`,
      ],
      [
        (model.prompt_overhead_tokens ?? 0) >= shortest,
        `prompt_overhead_tokens is not below the context_length of ${shortest}: every prompt is held for at that length`,
      ],
      [
        model.image_urls,
        'image_urls lets agents have the model server fetch any http(s) address, inside your network, too',
      ],
    ];
    return details.flatMap(([isSo, detail]) => (isSo ? [note(`router.models ${id}`, `${detail}.`)] : []));
  });
}

/** Finds services at addresses that others on the network path can read, and keys of a test mode. */
function examineAddresses({ identity, billing, transfer, events, opentelemetry }: Config): CheckFinding[] {
  const open = (name: string, address: string | undefined, what: string) =>
    address !== undefined && isOpen(address) ? [note(name, `over http:// ${what}.`)] : [];
  return [
    ...open('identity.issuer', identity?.issuer, 'anybody on the network path can sign in as any user'),
    ...(billing && !isLive(billing.stripe)
      ? [note('billing.stripe', 'the key is of test mode: test cards pay, and what they pay is credited.')]
      : []),
    ...open(
      'transfer.endpoint',
      transfer?.endpoint,
      'objects and their signed addresses can be read on the network path',
    ),
    ...open(
      'opentelemetry.endpoint',
      opentelemetry?.endpoint,
      'spans and their headers can be read on the network path',
    ),
    ...events.receivers.flatMap(({ name, url, types }) => [
      ...open('events.receivers', url.reveal(), `the events for ${name} can be read on the network path`),
      ...(types?.includes('account.low') && events.account_low_cents === undefined
        ? [
            note(
              'events.account_low_cents',
              `it is not set: ${name} gets account.low only when an account cannot pay a refill.`,
            ),
          ]
        : []),
    ]),
  ];
}
