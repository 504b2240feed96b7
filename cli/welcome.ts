import { ZERO } from '../src/base/money.ts';
import type { CheckFinding } from '../src/compute/backend.ts';
import { VERSION } from '../src/files/version.ts';
import { figures } from '../src/ledger/figures.ts';
import type { Served } from '../src/main/serve.ts';
import { urlOf } from '../src/net/listen.ts';
import { lineOf } from './findings.ts';
import { toned } from './terminal.ts';

type Order = {
  /** The arguments of the command line that every further command needs: --data and --config. */
  globals: string;
  /** True if this start has created the installation. */
  isNew: boolean;
  masterKeyFile: string | undefined;
  notes: readonly CheckFinding[];
};

/**
 * Returns the text that `serve` prints on a terminal: its address, what is missing before money can be spent, and the next
 * commands.
 */
export function welcome(app: Served, { globals, isNew, masterKeyFile, notes }: Order): string {
  const { config } = app;
  const listens = `${toned('heading', `Purser ${VERSION}`)} listens on ${urlOf(app.address, config.tls)}`;
  const purser = `purser${globals}`;
  if (app.health.fault)
    return `${listens}.\n${toned('bad', `The database is not served: ${app.health.fault}.`)} What to do: ${purser} doctor`;
  const { accounts, wallets } = figures(app.ledger.read);
  const hasModel = app.catalogue.list.length > 0;
  const hasSlot = app.slots.list.length > 0;
  const hasCredit = accounts.available > ZERO || wallets.count > 0;
  const missing = [
    ...(hasModel || hasSlot ? [] : [config.router.models.length ? 'no model has a price' : 'no model is configured']),
    ...(hasCredit ? [] : ['no account has credit']),
  ];
  const steps = [
    ...(hasModel || hasSlot ? [] : [config.file ? `${purser} config check` : `${purser} init`]),
    ...(hasCredit ? [] : [`${purser} account credit default 10.00`]),
    `${purser} wallet create --name agent-1 --budget 5.00`,
    `${purser} status`,
  ];
  return [
    `${listens}; agents are given ${app.state.baseUrl}.`,
    `Data: ${config.dataDirectory}. Settings: ${config.file ?? 'none, so every setting has its default'}.`,
    ...(isNew && masterKeyFile
      ? [`Copy ${masterKeyFile} to where your backups are not: no backup can be restored without it.`]
      : []),
    ...(missing.length ? [toned('warn', `Nobody can spend yet: ${missing.join(', and ')}.`)] : []),
    ...notes.map(lineOf),
    'Next, in another terminal:',
    ...steps.slice(0, 2).map((it) => `  ${it}`),
  ].join('\n');
}
