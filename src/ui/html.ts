import { html as template } from 'hono/html';
import type { HtmlEscapedString } from 'hono/utils/html';

/** Markup. Only `html` makes it, so that text from outside is always escaped. */
export type Html = HtmlEscapedString;
/** The values that a template accepts. Promises and objects are excluded: either would be a mistake in the page. */
export type HtmlValue = string | number | boolean | null | undefined | Html | readonly HtmlValue[];

/** Builds markup from a template; every string in it is escaped, `false`, `null` and `undefined` are left out. */
export function html(strings: TemplateStringsArray, ...values: HtmlValue[]): Html {
  return template(strings, ...values) as Html;
}

export const EMPTY = html``;
