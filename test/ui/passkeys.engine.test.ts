import assert from 'node:assert/strict';
import test from 'node:test';
import { breachesOn, openChromium } from '../helper/chromium.ts';
import { openTestServer } from '../helper/server.ts';

test('in a real browser an operator makes a passkey after the first link, signs in with it, and removes it', async (t) => {
  const purser = await openTestServer(t);
  const here = purser.url.replace('127.0.0.1', 'localhost');
  const chromium = await openChromium(t, here, purser.url);
  if (!chromium) return;
  const { page, context } = await chromium.open();
  const devices = await context.newCDPSession(page);
  await devices.send('WebAuthn.enable');
  const { authenticatorId } = await devices.send('WebAuthn.addVirtualAuthenticator', {
    options: {
      protocol: 'ctap2',
      transport: 'internal',
      hasResidentKey: true,
      hasUserVerification: true,
      isUserVerified: true,
      automaticPresenceSimulation: true,
    },
  });
  const { url } = await purser.run('ui.link', {});
  await page.goto(`${here}${new URL(url).pathname}`);

  await page.goto(`${here}/settings`);
  await page.getByLabel('Name of a new passkey').fill('this laptop');
  await page.getByRole('button', { name: 'Make a passkey' }).click();
  await page.getByText('The passkey was added.').waitFor();
  const { credentials } = await devices.send('WebAuthn.getCredentials', { authenticatorId });
  assert.deepEqual(
    credentials.map((it) => [it.rpId, it.isResidentCredential]),
    [['localhost', true]],
  );
  assert.deepEqual(await breachesOn(page), []);

  // The device knows that it has one.
  await page.getByLabel('Name of a new passkey').fill('again');
  await page.getByRole('button', { name: 'Make a passkey' }).click();
  await page.getByText('This device has a passkey already.').waitFor();

  for (let time = 0; time < 2; time++) {
    await page.getByRole('button', { name: 'Sign out', exact: true }).click();
    await page.getByRole('button', { name: 'Sign in with a passkey' }).click();
    await page.getByRole('heading', { name: 'Now', level: 1 }).waitFor();
  }

  // A device that does not recognise its user is refused by the browser, and the page says so.
  await devices.send('WebAuthn.setUserVerified', { authenticatorId, isUserVerified: false });
  await page.getByRole('button', { name: 'Sign out', exact: true }).click();
  await page.getByRole('button', { name: 'Sign in with a passkey' }).click();
  await page.getByText('It was cancelled, or took too long.').waitFor();
  assert.deepEqual(await breachesOn(page), []);
  await devices.send('WebAuthn.setUserVerified', { authenticatorId, isUserVerified: true });
  await page.getByRole('button', { name: 'Sign in with a passkey' }).click();

  await page.getByRole('link', { name: 'Settings' }).click();
  await page.getByRole('link', { name: 'Remove' }).click();
  await page.getByRole('button', { name: 'Remove the passkey' }).click();
  await page.getByRole('heading', { name: 'Sign in to Purser' }).waitFor();
  assert.equal(await page.getByRole('button', { name: 'Sign in with a passkey' }).count(), 0);
  assert.deepEqual(chromium.faults, []);
});

test('without script the page offers no passkey that would do nothing, and says why', async (t) => {
  const purser = await openTestServer(t);
  const here = purser.url.replace('127.0.0.1', 'localhost');
  const chromium = await openChromium(t, here, purser.url);
  if (!chromium) return;
  const { page } = await chromium.open({ javaScriptEnabled: false });
  const { url } = await purser.run('ui.link', {});
  await page.goto(`${here}${new URL(url).pathname}`);
  await page.goto(`${here}/settings`);
  assert.equal(await page.getByText('A passkey needs JavaScript.').isVisible(), true);
  assert.equal(await page.getByRole('button', { name: 'Make a passkey' }).isVisible(), false);
});
