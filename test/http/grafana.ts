import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export const GRAFANA = join(import.meta.dirname, '../../docs/grafana');
const read = (name: string) => readFileSync(join(GRAFANA, name), 'utf8');

/** The expressions of the dashboard. */
export function dashboardQueries(): string[] {
  const { panels } = JSON.parse(read('dashboard.json')) as { panels: { targets?: { expr: string }[] }[] };
  return panels.flatMap(({ targets }) => (targets ?? []).map(({ expr }) => expr));
}

/** The expressions of the alert rules. */
export const alertQueries = (): string[] =>
  [...read('alerts.yml').matchAll(/expr: (.*)/g)].map(([, expr]) => expr as string);
