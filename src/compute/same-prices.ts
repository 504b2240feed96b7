import { formatUsd, Nanos } from '../base/money.ts';

/** The parts of all backends' settings that define the items on sale and their prices. */
type SoldItem = {
  prices?: {
    cpu_hourly_usd: bigint;
    memory_gib_hourly_usd: bigint;
    gpu_hourly_usd?: Readonly<Record<string, bigint>>;
  };
  chips?: Readonly<Record<string, { price_hourly_usd: bigint }>>;
  hosts?: readonly { chip: string; price_hourly_usd: bigint }[];
  offers?: readonly {
    id: string;
    cpus: number;
    memory_gib: number;
    max_disk_gb: number;
    price_hourly_usd: bigint;
  }[];
};

/** Maps each item on sale to a description of its price and size. */
function soldBy({ prices, chips = {}, hosts = [], offers = [] }: SoldItem): Map<string, string> {
  const usd = (price: bigint) => `${formatUsd(Nanos(price))} USD an hour`;
  const sized = prices
    ? [
        ['a CPU', usd(prices.cpu_hourly_usd)] as const,
        ['a GiB of memory', usd(prices.memory_gib_hourly_usd)] as const,
        ...Object.entries(prices.gpu_hourly_usd ?? {}).map(([gpu, price]) => [`the GPU ${gpu}`, usd(price)] as const),
      ]
    : [];
  return new Map([
    ...sized,
    ...Object.entries(chips).map(([chip, it]) => [`the chip ${chip}`, usd(it.price_hourly_usd)] as const),
    ...hosts.map((it) => [`the chip ${it.chip}`, usd(it.price_hourly_usd)] as const),
    ...offers.map((it) => {
      const size = `${it.cpus} CPUs, ${it.memory_gib} GiB and ${it.max_disk_gb} GB of disk`;
      return [`the offer ${it.id}`, `${usd(it.price_hourly_usd)} for ${size}`] as const;
    }),
  ]);
}

/**
 * Returns, in words, the first item that two backends of a slot sell under one name on different terms; undefined if there is none.
 * The price of a lease must not depend on the backend that makes it.
 */
export function firstOtherPrice(list: readonly (readonly [name: string, settings: object])[]): string | undefined {
  const terms = new Map<string, { name: string; words: string }>();
  for (const [name, settings] of list)
    for (const [what, words] of soldBy(settings as SoldItem)) {
      const first = terms.get(what);
      if (first && first.words !== words) return `${what} is ${first.words} on ${first.name} and ${words} on ${name}`;
      terms.set(what, first ?? { name, words });
    }
  return undefined;
}
