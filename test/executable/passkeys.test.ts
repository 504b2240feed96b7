import assert from 'node:assert/strict';
import test from 'node:test';
import { installation } from '../helper/executable.ts';
import { openAuthenticator } from '../ui/authenticator.ts';
import { openBrowser } from '../ui/sample.ts';

test('the executable has what it takes for passkeys of each kind, beside its main bundle', async (t) => {
  const purser = installation(t);
  const serving = await purser.serve();
  const url = serving.url.replace('127.0.0.1', 'localhost');
  const operator = openBrowser({ url });
  const link = await purser.json('ui', '--no-open');
  await operator.get(new URL(link.url).pathname);
  for (const kind of ['ec', 'rsa', 'ed25519'] as const) {
    const authenticator = openAuthenticator(url, kind);
    const options = await operator.post('/settings/passkeys/options');
    const credential = authenticator.make(JSON.parse(options.html));
    const made = await operator.post('/settings/passkeys', { name: kind, credential });
    assert.equal(made.status, 303, made.html);
    const browser = openBrowser({ url });
    const asked = await browser.post('/sign-in/passkey/options');
    const answer = authenticator.answer(JSON.parse(asked.html));
    const signedIn = await browser.post('/sign-in/passkey', { credential: answer });
    assert.equal(signedIn.status, 303, signedIn.html);
  }
});
