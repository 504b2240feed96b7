import type { Counter, Registry } from 'prom-client';

/**
 * Metrics of what happens with every chat: numbers in cells, from which a scrape writes the text. prom-client would put a text of
 * the labels together for each, and make several objects. Every metric has two or three labels.
 */

/** The values of the labels, in the order of their names. */
type LabelValues = [string, string, string?];

type HotCounter = {
  /** Raises the count of these labels. */
  add(by: number, ...values: LabelValues): void;
};
type HotHistogram = {
  observe(value: number, ...values: LabelValues): void;
};

/** Adds a counter to the registry. */
export function hotCounter(registry: Registry, name: string, help: string, labelNames: readonly string[]): HotCounter {
  const cells = createCells(() => ({ count: 0 }));
  register(registry, { name, help, type: 'counter' }, () =>
    cells.list().map(({ values, cell }) => ({ labels: labelsOf(labelNames, values), value: cell.count })),
  );
  return {
    add(by, first, second, third) {
      cells.at(first, second, third).count += by;
    },
  };
}

/** Adds a histogram to the registry. */
export function hotHistogram(
  registry: Registry,
  name: string,
  help: string,
  labelNames: readonly string[],
  buckets: readonly number[],
): HotHistogram {
  const cells = createCells(() => ({ sum: 0, counts: new Array<number>(buckets.length + 1).fill(0) }));
  register(registry, { name, help, type: 'histogram' }, () =>
    cells.list().flatMap(({ values, cell: { sum, counts } }) => {
      const sharedLabels = labelsOf(labelNames, values);
      let count = 0;
      const upTo = counts.map((it, i) => {
        count += it;
        return { labels: { le: buckets[i] ?? '+Inf' }, sharedLabels, value: count, metricName: `${name}_bucket` };
      });
      return [
        ...upTo,
        { labels: {}, sharedLabels, value: sum, metricName: `${name}_sum` },
        { labels: {}, sharedLabels, value: count, metricName: `${name}_count` },
      ];
    }),
  );
  return {
    observe(value, first, second, third) {
      const cell = cells.at(first, second, third);
      let bucket = 0;
      while (bucket < buckets.length && value > (buckets[bucket] as number)) bucket++;
      cell.sum += value;
      cell.counts[bucket] = (cell.counts[bucket] as number) + 1;
    },
  };
}

/** Cells by the values of labels. Finding one makes no object. */
function createCells<C>(create: () => C) {
  const all = new Map<string, Map<string, Map<string, C>>>();
  return {
    at(first: string, second: string, third = ''): C {
      const cell = all.get(first)?.get(second)?.get(third);
      if (cell) return cell;
      const fresh = create();
      const some = all.get(first) ?? new Map<string, Map<string, C>>();
      const few = some.get(second) ?? new Map<string, C>();
      all.set(first, some.set(second, few.set(third, fresh)));
      return fresh;
    },
    list(): { values: string[]; cell: C }[] {
      return [...all].flatMap(([first, some]) =>
        [...some].flatMap(([second, few]) =>
          [...few].map(([third, cell]) => ({ values: [first, second, third], cell })),
        ),
      );
    },
  };
}

const labelsOf = (names: readonly string[], values: readonly string[]) =>
  Object.fromEntries(names.map((name, i) => [name, values[i]]));

/** Adds a metric that is read at each scrape. The registry takes any object that answers `get`. */
function register(
  registry: Registry,
  facts: { name: string; help: string; type: string },
  values: () => object[],
): void {
  registry.registerMetric({ ...facts, get: async () => ({ ...facts, values: values() }) } as unknown as Counter);
}
