import { formatDecimal } from '../../base/money.ts';
import type { CommandOutput } from '../../operator/commands.ts';
import { type Html, type HtmlValue, html } from '../html.ts';
import type { Page } from '../layout.ts';
import { badge, buttonLink, card, count, outside, table } from '../parts.ts';
import { ago } from '../times.ts';
import { run, type Visit } from '../visit.ts';

/** Renders a price per million tokens, the usual unit for comparisons. The wire has the price of one token, scaled by 10^15. */
function perMillion(price: string | undefined): HtmlValue {
  if (price === undefined) return '';
  const [whole = '0', fraction = ''] = price.split('.');
  const scaled = BigInt(whole + fraction.padEnd(15, '0')) * 1_000_000n;
  return `$${formatDecimal(scaled, 15, 2)}`;
}

/** Shows the learned bounds of a model's routes, and the command that forgets them. */
function learnedOf({ id, routes }: CommandOutput<'models.list'>['data'][number]): HtmlValue {
  const learned = routes.filter((it) => it.bound_overhead_tokens > 0 || it.bound_factor > 1);
  if (learned.length === 0) return '';
  const each = learned.map(
    (it) =>
      html`${outside(it.upstream)}: ${count(it.bound_overhead_tokens)} tokens added, × ${String(it.bound_factor)} `,
  );
  return html`${each}<span class="weak"><code>purser models forget ${outside(id)}</code></span>`;
}

/** Shows the models with their prices and, for the operator, whether their servers can be reached. */
export async function modelsPage(visit: Visit): Promise<Page> {
  const isOperator = visit.viewer.kind === 'operator';
  const [{ data }, status] = await Promise.all([
    run(visit, 'models.list', {}),
    isOperator ? run(visit, 'status', {}) : undefined,
  ]);
  const upOf = new Map(status?.upstreams.map((it) => [it.name, it.up]));
  const rows = data.map((it) => [
    html`<code>${outside(it.id)}</code>`,
    perMillion(it.pricing.prompt),
    perMillion(it.pricing.completion),
    perMillion(it.pricing.input_cache_read),
    `$${it.pricing.request}`,
    count(it.context_length),
    ...(isOperator
      ? [it.upstreams.map((name) => html`${badge(name, upOf.get(name) === false ? 'bad' : 'good')} `), learnedOf(it)]
      : []),
  ]);
  const list = table(
    'Models',
    [
      { label: 'Model' },
      { label: 'Prompt', kind: 'money' },
      { label: 'Completion', kind: 'money' },
      { label: 'Cached prompt', kind: 'money' },
      { label: 'Request', kind: 'money' },
      { label: 'Context', kind: 'number' },
      ...(isOperator ? [{ label: 'Servers' }, { label: 'Learned bound' }] : []),
    ],
    rows,
    html`No model is on offer: configure <code>router.models</code> in purser.yaml.`,
  );
  const body = html`${card('Prices', html`${list}${isOperator && html`<p class="actions">${buttonLink('/models/import', 'Import prices')}</p>`}`, 'dollars for a million tokens, and for each request')}${status !== undefined && card('Model servers', serverTable(status.upstreams, visit))}`;
  return { title: 'Models', body, section: '/models' };
}

/** Renders the model servers, and since when those that are down have been down. */
export function serverTable(upstreams: CommandOutput<'status'>['upstreams'], visit: Visit): Html {
  const rows = upstreams.map((it) => [
    outside(it.name),
    it.up ? (it.failing_since === null ? badge('up', 'good') : badge('failing', 'bad')) : badge('down', 'bad'),
    ago(it.failing_since, visit, ''),
    html`<code>${it.base_url}</code>${!it.up && html` <span class="weak">${it.reason}</span>`}${it.failure !== null && html` <span class="weak">${outside(it.failure)}</span>`}`,
  ]);
  return table(
    'Model servers',
    [{ label: 'Name' }, { label: 'State' }, { label: 'Since', kind: 'time' }, { label: 'Address' }],
    rows,
    html`No model server is configured: <code>router.upstreams</code> in purser.yaml.`,
  );
}
