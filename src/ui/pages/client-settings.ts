import { Refusal } from '../../base/refusal.ts';
import {
  CLIENT_NAMES,
  type ClientSettings,
  clientSettings,
  firstChatModel,
  isClientName,
} from '../../wire/client-settings.ts';
import { EMPTY, type Html, html } from '../html.ts';
import { copyButton, filters, outside } from '../parts.ts';
import type { Visit } from '../visit.ts';

/**
 * Renders the settings of a model client for a wallet, with the client and the model that the address names. The page has no
 * gateway key: the client takes it from a variable.
 */
export function clientCard({ app, query }: Visit, walletId: string): Html {
  const models = app.catalogue.list.filter(({ kind }) => kind === 'chat');
  const model = models.find(({ id }) => id === query.get('model')) ?? firstChatModel(app.catalogue);
  if (!model) return EMPTY;
  const requested = query.get('client') ?? '';
  const client = isClientName(requested) ? requested : 'openai';
  const form = filters(
    `/wallets/${walletId}#client`,
    [
      { name: 'client', label: 'Client', value: client, options: CLIENT_NAMES.map((it) => [it, it] as const) },
      { name: 'model', label: 'Model', value: model.id, options: models.map(({ id }) => [id, id] as const) },
    ],
    { submit: 'Show' },
  );
  const gateway = { baseUrl: `${app.state.baseUrl}/v1/router`, apiKey: undefined, model };
  return html`<details class="card" id="client"${requested !== '' && html` open`}><summary>Use it in a client of models</summary><div class="stack">${form}${shown(() => clientSettings(client, gateway))}<p class="hint">OPENAI_API_KEY is a gateway key of this wallet. <code>purser wallet env ${walletId} --for ${client}</code> fills it in; an agent gets one by <code>POST /v1/router/key</code> with its token.</p></div></details>`;
}

function shown(settings: () => ClientSettings): Html {
  try {
    const { file, block, start } = settings();
    return html`<div class="token">${file !== null && html`<p class="hint">${file}</p>`}<pre>${block}</pre>${copyButton(block, 'the settings')}</div>${start !== null && html`<p class="hint">Start it: <code>${start}</code></p>`}`;
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return html`<p class="notice warn">${outside(error.message)}</p>`;
  }
}
