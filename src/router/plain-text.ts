import type { PlainText } from './sse.ts';

/**
 * Matches the form of nearly every event: one piece of plain text. An event with a nested object, an escape, an error or a
 * line end inside is parsed as JSON.
 */
const PLAIN =
  /data: \{[^{}\r\n]*"choices":\[\{"index":0,"delta":\{(?:"role":"assistant",)?"(?:content|reasoning|reasoning_content)":"([^"\\\r\n]*)"\}(?:,"logprobs":null)?,"finish_reason":null\}\](?:,"usage":null)?\}\r?\n\r?\n/y;

/**
 * Recognises events of plain text without parsing them, which would cost more than all other work on a token. The events of
 * one stream mostly differ in their text alone: the bytes around it are remembered, and then compared.
 */
export function createPlainText(): PlainText {
  let before = '';
  let after = '';
  return (text, at) => {
    let end = at;
    let textBytes = 0;
    for (; before && text.startsWith(before, end); ) {
      const from = end + before.length;
      const to = text.indexOf('"', from);
      if (to === -1 || !text.startsWith(after, to) || !isPlain(text, from, to)) break;
      textBytes += to - from;
      end = to + after.length;
    }
    if (end > at) return { end, textBytes };
    PLAIN.lastIndex = at;
    const found = PLAIN.exec(text);
    if (!found || found[0].includes('"error"')) return undefined;
    const [all, said = ''] = found;
    const from = all.lastIndexOf(`"${said}"}`) + 1;
    before = all.slice(0, from);
    after = all.slice(from + said.length);
    return { end: at + all.length, textBytes: said.length };
  };
}

/** Returns whether a piece of text has neither an escape nor a line end. */
function isPlain(text: string, from: number, to: number): boolean {
  for (let at = from; at < to; at++) {
    const code = text.charCodeAt(at);
    if (code === 92 || code === 10 || code === 13) return false;
  }
  return true;
}
