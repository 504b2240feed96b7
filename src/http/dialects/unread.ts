const URL_LENGTH_SHOWN = 500;

/** More tokens than any context has: the bound of a file with pages, which become images. */
export const WHOLE_CONTEXT = 1e9;

/** Returns the sentence in place of a document that the model server would have to fetch. */
export const unreadAddress = (url: string): string =>
  `[A document at ${url.slice(0, URL_LENGTH_SHOWN)}: this model cannot read it.]`;
