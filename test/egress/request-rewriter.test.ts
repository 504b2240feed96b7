import assert from 'node:assert/strict';
import test from 'node:test';
import { Secret } from '../../src/base/secret.ts';
import { createRequestRewriter, RequestFault } from '../../src/egress/request-rewriter.ts';

const PLACEHOLDER = 'purser_placeholder_1';
const VALUE = 'v'.repeat(4096);

/** Returns a rewriter of requests to `https://api.test`, and how often it asked for the replacements. */
function open() {
  const asked = { count: 0 };
  const rewrite = createRequestRewriter('api.test', 443, () => {
    asked.count += 1;
    return [{ header: 'authorization', placeholder: PLACEHOLDER, value: new Secret(VALUE) }];
  });
  return { asked, say: (text: string) => rewrite(Buffer.from(text, 'latin1')).toString('latin1') };
}

const head = (first: string, ...headers: string[]) =>
  `${[`${first} HTTP/1.1`, 'Host: api.test', ...headers].join('\r\n')}\r\n\r\n`;

test('a header does not become longer than one value makes it', () => {
  const basic = Buffer.from(`${PLACEHOLDER}:${PLACEHOLDER}`).toString('base64');
  for (const it of [`${PLACEHOLDER} ${PLACEHOLDER}`, PLACEHOLDER.repeat(40), `Basic ${basic}`])
    assert.ok(
      open()
        .say(head('GET /', `Authorization: ${it}`))
        .includes(`authorization: ${it}\r\n`),
      it,
    );
  assert.ok(
    open()
      .say(head('GET /', `Authorization: Bearer ${PLACEHOLDER}`))
      .includes(`Bearer ${VALUE}\r\n`),
  );
});

test('nothing follows a body that a server may leave unread, and what is usual stays open', () => {
  const isLast = (...lines: [string, ...string[]]) =>
    open()
      .say(head(...lines))
      .includes('\r\nconnection: close\r\n');
  for (const method of ['GET', 'HEAD', 'DELETE', 'OPTIONS'])
    for (const body of ['Content-Length: 5', 'Transfer-Encoding: chunked'])
      assert.ok(isLast(`${method} /`, body), `${method} ${body}`);
  assert.ok(isLast('PUT /', 'Content-Length: 5', 'Expect: 100-continue'));
  const { say } = open();
  say(`${head('GET /', 'Content-Length: 5')}hello`);
  assert.throws(() => say(head('GET /', `Authorization: ${PLACEHOLDER}`)), /was the last of its connection/);
  assert.ok(!isLast('POST /', 'Content-Length: 5'));
  assert.ok(!isLast('GET /', 'Content-Length: 0'));
  assert.ok(!isLast('GET /'));
});

test('a length is written in one way', () => {
  for (const length of ['010', '00', '0x5', '+5', '5, 5', ''])
    assert.throws(() => open().say(head('POST /', `Content-Length: ${length}`)), RequestFault, length);
});

test('many requests in one piece ask for the replacements once, and those of the next piece anew', () => {
  const { asked, say } = open();
  const request = head('GET /', `Authorization: ${PLACEHOLDER}`);
  assert.equal(say(request.repeat(500)).split(VALUE).length, 501);
  assert.equal(asked.count, 1);
  say(request);
  assert.equal(asked.count, 2);
});

test('a head of thousands of headers is not compared with each secret', () => {
  let lookedAt = 0;
  const replacements = Array.from({ length: 32 }, (_, i) => ({
    get header() {
      lookedAt += 1;
      return `x-secret-${i}`;
    },
    placeholder: PLACEHOLDER,
    value: new Secret(VALUE),
  }));
  const rewrite = createRequestRewriter('api.test', 443, () => replacements);
  const many = Array.from({ length: 2000 }, (_, i) => `${i}: `);
  const sent = rewrite(Buffer.from(head('GET /', ...many, `X-Secret-31: ${PLACEHOLDER}`))).toString();
  assert.ok(sent.includes(`x-secret-31: ${VALUE}\r\n`) && sent.includes('\r\n1999: \r\n'));
  assert.ok(lookedAt <= 2 * replacements.length, `${lookedAt} times`);
});
