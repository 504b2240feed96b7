import type { Page } from 'playwright-core';
import { UNBROKEN } from './long.ts';

/** A price list as LiteLLM publishes it: dearer than the sample's models, with one that has a long name. */
const PRICES = Object.fromEntries(
  ['real/chat', `vendor/${UNBROKEN}`].map((name) => [
    name,
    {
      mode: 'chat',
      input_cost_per_token: 0.000123,
      output_cost_per_token: 0.009999,
      max_input_tokens: 32_000,
      max_output_tokens: 1000,
    },
  ]),
);

/** Opens each page of the operator that only a form leads to, and calls `look` there. */
export async function openAnswers(page: Page, url: string, look: (name: string) => Promise<void>): Promise<void> {
  await page.goto(`${url}/models/import`);
  const list = { name: 'prices.json', mimeType: 'application/json', buffer: Buffer.from(JSON.stringify(PRICES)) };
  await page.getByLabel('File').setInputFiles(list);
  await page.getByLabel('Models of the list to add').fill(`vendor/${UNBROKEN}`);
  await page.getByRole('button', { name: 'Compare' }).click();
  await page.getByRole('button', { name: 'Write and reload' }).waitFor();
  await look('the comparison with a price list');

  await page.goto(`${url}/settings`);
  await page.getByRole('button', { name: 'Examine the installation' }).click();
  await page.getByText('Each finding names its remedy.').waitFor();
  await look('the findings of doctor');
}
