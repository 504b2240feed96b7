import { parseJson } from '../../base/parse-json.ts';
import { Refusal } from '../../base/refusal.ts';
import { runOwn } from '../../files/own-command.ts';
import { headOf } from '../../ledger/head.ts';
import { latestEntries } from '../../ledger/journal.ts';
import { readVerdict, type Verification } from '../../ledger/verify.ts';
import { type Html, html } from '../html.ts';
import type { Page } from '../layout.ts';
import { address, card, count, facts, form, id, link, money, outside, table } from '../parts.ts';
import { when } from '../times.ts';
import type { Visit } from '../visit.ts';

const ENTRY_COUNT = 100;
const OUTPUT_BYTES_MAX = 4 * 1024 * 1024;
const PROBLEM_COUNT = 50;

/** The verification in progress. Only one at a time, as it reads the whole file. */
let verifying: Promise<Verification> | undefined;

/** Shows the journal: its head, its newest entries, and the button that verifies it. */
export function journalPage(visit: Visit, verdict?: Verification): Page {
  const { app, query, path } = visit;
  const before = Number(query.get('before')) || undefined;
  const entries = latestEntries(app.ledger.read, ENTRY_COUNT, before);
  const head = headOf(app.ledger.read);
  const rows = entries.map((it) => [
    String(it.seq),
    when(it.at, visit),
    book(it.debit),
    book(it.credit),
    money(it.amount),
    causeOf(it.causeId),
  ]);
  const last = entries.at(-1);
  const list = table(
    'Journal',
    [
      { label: 'No', kind: 'number' },
      { label: 'Time', kind: 'time' },
      { label: 'From' },
      { label: 'To' },
      { label: 'Amount', kind: 'money' },
      { label: 'Cause', isFirst: true },
    ],
    rows,
    'No money has moved yet.',
  );
  const body = html`
    ${verdict && verdictNotice(verdict)}
    ${card(
      'Head',
      html`${facts([
        ['Newest entry', count(head.seq)],
        ['Epoch', String(head.epoch)],
        ['Hash', id(head.hash)],
      ])}${form({ action: '/journal/verify', submit: 'Verify the whole journal' })}`,
      'hash-chained, append-only',
    )}
    ${card('Entries', html`${list}<nav class="pager" aria-label="Pages">${before !== undefined && link(address(path, query, { before: undefined }), 'Newest')}${last && last.seq > 1 && link(address(path, query, { before: String(last.seq) }), 'Older')}</nav>`, 'newest first')}`;
  return { title: 'Journal', body, section: '/journal' };
}

/** Renders a book of the journal, as a link if it has a page. */
function book(name: string): Html {
  const [kind = '', id] = name.split(':');
  if ((kind === 'wallet' || kind === 'hold') && id) return html`${kind} ${link(`/wallets/${id}`, `…${id.slice(-6)}`)}`;
  if ((kind === 'account' || kind === 'owed') && id)
    return html`${kind} ${link(`/accounts/${id}`, `…${id.slice(-6)}`)}`;
  return html`${outside(name)}`;
}

function causeOf(causeId: string): Html {
  const short = `…${causeId.slice(-6)}`;
  if (causeId.startsWith('op_')) return html`${link(`/operations/${causeId}`, `operation ${short}`)}`;
  if (causeId.startsWith('wal_')) return html`${link(`/wallets/${causeId}`, `wallet ${short}`)}`;
  return html`<code title="${causeId}">${short}</code>`;
}

function verdictNotice({ ok, entries, problems, faults }: Verification): Html {
  if (ok)
    return html`<p class="notice good" role="status">${count(entries)} entries were verified: the chain is whole and every balance agrees.</p>`;
  return html`<div class="notice bad" role="alert"><p>${count(faults)} problems in ${count(entries)} entries:</p><ul>${problems.slice(0, PROBLEM_COUNT).map((it) => html`<li>${outside(it)}</li>`)}</ul>${problems.length > PROBLEM_COUNT && html`<p>These are the first ${PROBLEM_COUNT}; all: <code>purser ledger verify</code></p>`}</div>`;
}

/**
 * Verifies the journal with `purser ledger verify` in another process: it reads every row, and this process must keep
 * serving.
 */
export async function verifyJournal(visit: Visit): Promise<Page> {
  verifying ??= verify(visit.app.config.dataDirectory).finally(() => {
    verifying = undefined;
  });
  return journalPage(visit, await verifying);
}

async function verify(dataDirectory: string): Promise<Verification> {
  const args = ['--data', dataDirectory, '--json', 'ledger', 'verify'];
  const { stdout } = await runOwn(args, { env: {}, maxBuffer: OUTPUT_BYTES_MAX });
  try {
    const { error } = parseJson(stdout) as { error?: { message: string } };
    if (error) throw new Refusal('read_only', error.message);
    return readVerdict(stdout);
  } catch (error) {
    throw error instanceof Refusal ? error : new Error('`ledger verify` printed no verdict', { cause: error });
  }
}
