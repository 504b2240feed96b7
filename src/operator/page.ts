import * as v from 'valibot';
import { findBrowserSession, mintBrowserToken } from '../access/browser-sessions.ts';
import { hashToken } from '../access/token.ts';
import { openBrowserSession } from '../access/writes.ts';
import { Refusal } from '../base/refusal.ts';
import { command, Id, NOTHING } from './command.ts';

export const page = {
  /** Makes a link that signs a browser in as the operator, once, within a minute. */
  'ui.link': command(NOTHING, async (app) => {
    if (!app.health.serving) throw new Refusal('read_only', 'No server is running: start `purser serve`, then repeat.');
    if (!app.config.ui)
      throw new Refusal('conflict', 'The page is switched off: set `ui: true` in purser.yaml and restart Purser.');
    const now = app.clock.now();
    const code = mintBrowserToken();
    const order = { kind: 'link' as const, tokenHash: hashToken(code) };
    const link = await app.ledger.write(openBrowserSession, { order, earlierId: undefined, now });
    return { url: `${app.state.baseUrl}/sign-in/link/${code}`, expires_at: link.expiresAt };
  }),
  /** Returns whether the link with this code can still be used. */
  'ui.waits': command(v.strictObject({ code: Id }), ({ ledger, clock }, { code }) => {
    const found = findBrowserSession(ledger.read, hashToken(code), clock.now());
    return { waits: found?.kind === 'link' };
  }),
};
