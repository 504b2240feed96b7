import type { Page } from 'playwright-core';
import { priceList } from '../helper/price-list.ts';
import { UNBROKEN } from './long.ts';

/** Opens each page of the operator that only a form leads to, and calls `look` there. */
export async function openAnswers(page: Page, url: string, look: (name: string) => Promise<void>): Promise<void> {
  await page.goto(`${url}/models/import`);
  // Dearer than the sample's model, with one more that has a long name.
  const prices = { ...JSON.parse(priceList(0.000123)), ...JSON.parse(priceList(0.000123, `vendor/${UNBROKEN}`)) };
  const list = { name: 'prices.json', mimeType: 'application/json', buffer: Buffer.from(JSON.stringify(prices)) };
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
