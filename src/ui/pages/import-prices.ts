import { readFileSync } from 'node:fs';
import { Refusal } from '../../base/refusal.ts';
import { checkSettings } from '../../config/config.ts';
import { ConfigurationFault } from '../../config/fault.ts';
import { type ImportedPrices, importPrices } from '../../config/import-prices.ts';
import { readPriceList } from '../../config/price-list.ts';
import { replaceFault, replaceSettings } from '../../config/replace-settings.ts';
import { type Html, html } from '../html.ts';
import { below, type Page } from '../layout.ts';
import { card, dollars, form, outside, plural, table } from '../parts.ts';
import type { Preview } from '../previews.ts';
import type { Go } from '../sign-in.ts';
import type { Visit } from '../visit.ts';

/** The largest price list: LiteLLM's has some 2 MB. */
export const LIST_BYTES_MAX = 8 * 1024 * 1024;
const AT = below('/models', ['/models/import', 'Import prices']);

/** Shows the form that takes a price list. */
export function importPage({ app }: Visit): Page {
  const upstreams = app.config.router.upstreams.map(({ name }) => [name, name] as const);
  const body = card(
    'A price list',
    html`<p>LiteLLM's <code>model_prices_and_context_window.json</code>, or the answer of OpenRouter's <code>/api/v1/models</code>. First you see what would change.</p>${form(
      {
        action: '/models/import',
        fields: [
          { name: 'list', label: 'File', type: 'file', required: true },
          {
            name: 'names',
            label: 'Names in the list, where they are others',
            placeholder: 'small=openai/gpt-small',
            hint: 'MODEL=NAME, separated by spaces.',
          },
          { name: 'add', label: 'Models of the list to add', placeholder: 'optional', hint: 'Separated by spaces.' },
          ...(upstreams.length
            ? [{ name: 'upstream', label: 'Model server of those that are added', options: upstreams }]
            : []),
        ],
        submit: 'Compare',
        tone: 'primary',
      },
    )}`,
  );
  return { title: 'Import prices', body, ...below('/models') };
}

const words = (text: string | null) => (text ?? '').split(/\s+/).filter(Boolean);

function settingsFileOf({ app }: Visit): string {
  const { file } = app.config;
  if (file === undefined) throw new Refusal('conflict', 'There is no purser.yaml: `purser init` makes one.');
  return file;
}

/** Returns the comparison with a list that was sent. Throws `invalid_request` for what cannot be read or written. */
function compare({ form }: Visit, file: string, before: string): ImportedPrices {
  const names = words(form.get('names')).map((it) => {
    const [, id, name] = /^([^=]+)=(.+)$/.exec(it) ?? [];
    if (!id || !name) throw new Refusal('invalid_request', `${it} is not MODEL=NAME.`);
    return [id, name] as const;
  });
  const add = { names: words(form.get('add')), upstream: form.get('upstream') ?? undefined };
  let list: ReturnType<typeof readPriceList>;
  try {
    list = readPriceList(form.get('list') ?? '');
  } catch (error) {
    throw new Refusal('invalid_request', `This is no price list: ${(error as Error).message}.`, { cause: error });
  }
  try {
    const imported = importPrices(file, before, { list, names: new Map(names), add });
    if (imported.changes.length) checkSettings(file, imported.text);
    return imported;
  } catch (error) {
    if (error instanceof ConfigurationFault) throw new Refusal('invalid_request', error.message, { cause: error });
    throw error;
  }
}

/** Shows what a price list would change, and the button that writes it. */
export function previewPage(visit: Visit): Page {
  const file = settingsFileOf(visit);
  const before = readFileSync(file, 'utf8');
  const imported = compare(visit, file, before);
  const { changes } = imported;
  const rows = changes.map((it) => [
    html`<code>${outside(it.model)}</code>`,
    outside(it.upstream),
    `${it.price.replaceAll('_', ' ')}, ${/^(request|image)$/.test(it.price) ? 'each' : 'per million'}`,
    it.before_usd === null ? '–' : shownPrice(it.before_usd),
    shownPrice(it.after_usd),
  ]);
  const list = table(
    'Changes',
    [
      { label: 'Model' },
      { label: 'Server' },
      { label: 'Price' },
      { label: 'Before', kind: 'money' },
      { label: 'After', kind: 'money' },
    ],
    rows,
    'No price differs from the list.',
  );
  const body = html`${card('What would change', html`${list}${notes(imported)}`)}${changes.length > 0 && writing(visit, file, before, imported)}`;
  return { title: 'Compared with the list', body, ...AT };
}

/** Writes a price; one that is no amount, such as a variable of the file, as it stands there. */
const shownPrice = (usd: string): string => (/^[\d.]+$/.test(usd) ? dollars(usd) : outside(usd));

/** Names the models that the list cannot price. */
function notes({ unmatched, tiered }: ImportedPrices): Html {
  const lines = [
    ...unmatched.map(({ model, candidates }) =>
      candidates.length
        ? html`<code>${outside(model)}</code>: the list has ${outside(candidates.join(', '))} at different prices. Choose one under <em>Names in the list</em>.`
        : html`<code>${outside(model)}</code>: not in the list. Under another name, give it under <em>Names in the list</em>.`,
    ),
    ...tiered.map(
      (model) =>
        html`<code>${outside(model)}</code>: the list has dearer rates for long prompts. Write them as tiers by hand.`,
    ),
  ];
  return html`${lines.length > 0 && html`<ul>${lines.map((it) => html`<li>${it}</li>`)}</ul>`}`;
}

function writing({ app, parts, viewer }: Visit, file: string, before: string, { text, changes }: ImportedPrices): Html {
  const fault = app.reload ? replaceFault(file) : 'no server runs';
  if (fault)
    return html`<p class="notice info">This server may not write <code>${file}</code> (${fault}). Run <code>purser models import FILE</code> where it may be written, then <code>purser reload</code>.</p>`;
  const preview = parts.previews.keep(viewer.sessionId, { file, before, after: text });
  return card(
    `Write ${plural(changes.length, 'price')}?`,
    html`<p>They are written into <code>${file}</code>, and requests from then on have them. Comments stay.</p>${form({ action: '/models/import/write', hidden: { preview }, submit: 'Write and reload', tone: 'primary' })}`,
  );
}

/** Writes a change that was shown, and makes the server read it: both or neither. */
export async function write({ app, parts, viewer, form }: Visit): Promise<Go> {
  const preview = parts.previews.take(viewer.sessionId, form.get('preview') ?? '');
  if (!preview)
    throw new Refusal(
      'conflict',
      'This comparison is no longer there, or was written already. Compare with the list again.',
    );
  const { file, before, after } = preview;
  if (readFileSync(file, 'utf8') !== before)
    throw new Refusal('conflict', `${file} was changed since. Compare with the list again.`);
  const fault = replaceFault(file);
  if (fault) throw new Refusal('conflict', `This server may not write ${file} (${fault}).`);
  if (!app.reload) throw new Refusal('read_only', 'This process does not serve.');
  replaceSettings(file, after);
  try {
    await app.reload();
  } catch (error) {
    putBack(preview);
    throw error;
  }
  return { to: '/models?done=imported' };
}

/** Puts the settings back as they were, unless they have been edited since. Throws `conflict` where that cannot be written. */
function putBack({ file, before, after }: Preview): void {
  try {
    if (readFileSync(file, 'utf8') === after) replaceSettings(file, before);
  } catch (cause) {
    throw new Refusal(
      'conflict',
      `The new prices are in ${file}, but not in force: they were refused, and the file could not be put back (${(cause as NodeJS.ErrnoException).code}). Run \`purser config check\`.`,
      { cause },
    );
  }
}
