import { Refusal } from '../../base/refusal.ts';
import type { CheckFinding } from '../../compute/backend.ts';
import { WARNING } from '../../compute/finding.ts';
import { type Html, html } from '../html.ts';
import { below, type Page } from '../layout.ts';
import { badge, card, form, outside, plural, table } from '../parts.ts';
import type { Visit } from '../visit.ts';

/** Shows the button that examines the installation. */
export const doctorCard = (): Html =>
  card(
    'Examination',
    html`<p>Checks the files, the books, the settings, the model servers and the backends, as <code>purser doctor</code> does. It changes nothing, and may take a minute.</p>${form({ action: '/settings/doctor', submit: 'Examine the installation' })}`,
  );

const isWarning = ({ ok, detail }: CheckFinding) => ok && detail.startsWith(WARNING);

/** Examines the installation and shows every finding: faults and warnings first. */
export async function doctorPage({ app }: Visit): Promise<Page> {
  if (!app.runDoctor) throw new Refusal('read_only', 'This process does not serve: run `purser doctor`.');
  const findings = await app.runDoctor();
  const [faults, warnings] = [findings.filter((it) => !it.ok), findings.filter(isWarning)];
  const fine = findings.filter((it) => it.ok && !isWarning(it));
  const rowsOf = (all: readonly CheckFinding[], label: Html) =>
    all.map(({ name, detail }) => [
      label,
      outside(name),
      outside(detail.startsWith(WARNING) ? detail.slice(WARNING.length) : detail),
    ]);
  const list = table(
    'Findings',
    [{ label: 'Result' }, { label: 'Check' }, { label: 'Finding' }],
    [
      ...rowsOf(faults, badge('bad', 'bad')),
      ...rowsOf(warnings, badge('warning', 'warn')),
      ...rowsOf(fine, badge('good', 'good')),
    ],
  );
  const notice = faults.length
    ? html`<p class="notice bad" role="alert">${plural(faults.length, 'fault')}, ${plural(warnings.length, 'warning')}. Each finding names its remedy.</p>`
    : html`<p class="notice good" role="status">No fault, ${plural(warnings.length, 'warning')}.</p>`;
  return { title: 'Examination', body: html`${notice}${card('Findings', list)}${doctorCard()}`, ...below('/settings') };
}
