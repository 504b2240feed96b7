import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';

export const ROOT = new URL('../../', import.meta.url);

const page = readFileSync(new URL('docs/events.md', ROOT), 'utf8');

/** Returns the settings of the recipe below a heading, with other addresses for those that it names. */
export function recipe(heading: string, addresses: Record<string, string>, env: Record<string, string> = {}): object {
  const section = page.split(/^#+ /m).find((it) => it.startsWith(heading)) ?? assert.fail(`no recipe ${heading}`);
  const block = /```yaml\n([\s\S]*?)```/.exec(section)?.[1] ?? assert.fail(`no settings in ${heading}`);
  let text = block.replace(/\$\{(\w+)\}/g, (_, name: string) => env[name] ?? assert.fail(`${name} is not given`));
  for (const [from, to] of Object.entries(addresses)) {
    assert.ok(text.includes(from), `${from} in the recipe`);
    text = text.replaceAll(from, to);
  }
  return (parse(text) as { events: object }).events;
}
