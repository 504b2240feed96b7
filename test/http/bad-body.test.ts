import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { connect } from 'node:net';
import test, { suite } from 'node:test';
import { resetConnection } from '../../src/net/reset.ts';
import { openedOnce } from '../helper/opened-once.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { bodyBytesMax, type Line, WITH_BODY } from './interface.ts';
import { type RawAsked, sendRaw } from './raw.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

/** Posts to one endpoint, with a fitting token and a fresh key, exactly what it is told. */
async function poster(purser: TestServer, line: Line) {
  const tokens = { Account: purser.accountKey, Session: purser.operatorKey, Wallet: (await purser.openWallet()).token };
  return ({ headers, ...asked }: RawAsked) =>
    sendRaw(purser, 'POST', line.path, {
      token: tokens[line.auth],
      ...asked,
      headers: {
        'content-type': 'application/json',
        ...(line.key ? { 'idempotency-key': randomUUID() } : {}),
        ...headers,
      },
    });
}

suite('any endpoint with a body', () => {
  const opened = openedOnce(openTestServer);
  for (const line of WITH_BODY) {
    const { path, body } = line;
    const json = JSON.stringify(body);
    const bytesMax = bodyBytesMax(path);
    const title = `POST ${path}`;

    test(`${title} refuses bytes that are no JSON text in UTF-8`, async () => {
      const purser = opened();
      const post = await poster(purser, line);
      const inside = json.slice(1, -1);
      const bodies: [what: string, body: Buffer | string][] = [
        // A gateway key is made without a body as well.
        ...(path === '/v1/router/key' ? [] : [['nothing', ''] as [string, string]]),
        ['white space', ' \r\n\t '],
        ['half of it', json.slice(0, -1)],
        ['two of them', `${json}${json}`],
        ['a form', 'name=agent&budget_cents=100'],
        ['a NUL', '\0'],
        ['NaN', '{"a":NaN}'],
        ['a torn UTF-8 character', Buffer.from([...Buffer.from('{"a":"'), 0xc3, ...Buffer.from('"}')])],
        ['an overlong UTF-8 character', Buffer.from([...Buffer.from('{"a":"'), 0xc0, 0xaf, ...Buffer.from('"}')])],
        ['a surrogate in UTF-8', Buffer.from([...Buffer.from('{"a":"'), 0xed, 0xa0, 0x80, ...Buffer.from('"}')])],
        ['Latin-1', Buffer.from('{"a":"ü"}', 'latin1')],
        ['UTF-16', Buffer.from(json, 'utf16le')],
        ['a byte order mark', `\ufeff${json}`],
        ['a raw line feed in a text', `{"a":"\n"${inside ? `,${inside}` : ''}}`],
      ];
      await assertNothingMoves(purser, async () => {
        for (const [what, bytes] of bodies) assertRefused(await post({ body: bytes }), 400, 'invalid_json', what);
      });
    });

    test(`${title} refuses lists and objects nested without end`, async () => {
      const purser = opened();
      const post = await poster(purser, line);
      await assertNothingMoves(purser, async () => {
        for (const [open, close] of [
          ['[', ']'],
          ['{"a":', '}'],
          ['{"messages":[', ']}'],
        ] as const) {
          const levels = Math.min(100_000, Math.floor((bytesMax - 1) / (open.length + close.length)));
          const nested = `${open.repeat(levels)}${open.endsWith(':') ? '1' : ''}${close.repeat(levels)}`;
          assertRefused(await post({ body: nested }), 400, 'invalid_json', `${levels} levels of ${open}`);
          assertRefused(
            await post({ body: open.repeat(levels) }),
            400,
            'invalid_json',
            `${levels} levels of ${open}, torn`,
          );
        }
      });
    });

    test(`${title} refuses a body that is not said to be plain, uncompressed JSON`, async () => {
      const purser = opened();
      const post = await poster(purser, line);
      const types = [
        'text/plain',
        'application/x-www-form-urlencoded',
        'multipart/form-data; boundary=a',
        'application/jsonx',
      ];
      const codings = ['gzip', 'deflate', 'br', 'zstd', 'gzip, identity', 'x'.repeat(5000)];
      await assertNothingMoves(purser, async () => {
        for (const type of [...types, 'text/json', 'json', '', ';', '*/*', 'application/json, text/plain'])
          assertRefused(
            await post({ body: json, headers: { 'content-type': type } }),
            415,
            'unsupported_media_type',
            type,
          );
        for (const coding of codings)
          assertRefused(
            await post({ body: json, headers: { 'content-encoding': coding } }),
            415,
            'unsupported_media_type',
            coding,
          );
      });
    });

    test(`${title} refuses more than ${bytesMax} bytes, announced or not, before they have come to their end`, async () => {
      const purser = opened();
      const post = await poster(purser, line);
      await assertNothingMoves(purser, async () => {
        const announced = { 'content-length': String(bytesMax + 1) };
        assertRefused(
          await post({ headers: announced, unfinished: true }),
          413,
          'payload_too_large',
          'announced, never sent',
        );
        const endless = { 'content-length': String(Number.MAX_SAFE_INTEGER) };
        assertRefused(await post({ headers: endless, unfinished: true }), 413, 'payload_too_large', 'endless');
        const spaces = Buffer.alloc(bytesMax + 1, ' ');
        assertRefused(
          await post({ body: spaces, unfinished: true }),
          413,
          'payload_too_large',
          'in chunks, without an end',
        );
        assertRefused(await post({ body: spaces, headers: announced }), 413, 'payload_too_large', 'sent whole');
        assertRefused(await post({ body: spaces }), 413, 'payload_too_large', 'in chunks, whole');
      });
    });

    test(`${title} reads a body of exactly ${bytesMax} bytes, announced or in chunks`, async () => {
      const purser = opened();
      const post = await poster(purser, line);
      const bytes = Buffer.from(`${'{"a":"'.padEnd(bytesMax - 1, 'a')}"`); // one character short of JSON
      assert.equal(bytes.length, bytesMax);
      await assertNothingMoves(purser, async () => {
        assertRefused(
          await post({ body: bytes, headers: { 'content-length': String(bytesMax) } }),
          400,
          'invalid_json',
        );
        assertRefused(await post({ body: bytes }), 400, 'invalid_json');
      });
    });
  }
});

test('a body is JSON whatever the case of its content type, and with a parameter', async (t) => {
  const purser = await openTestServer(t);
  for (const type of [
    'application/json',
    'Application/JSON',
    'application/json; charset=utf-8',
    'application/json;charset=utf-8',
  ])
    for (const coding of [undefined, 'identity']) {
      const headers = {
        'content-type': type,
        'idempotency-key': randomUUID(),
        ...(coding ? { 'content-encoding': coding } : {}),
      };
      const body = '{"name":"a","budget_cents":100}';
      const answer = await sendRaw(purser, 'POST', '/v1/wallets', { token: purser.accountKey, headers, body });
      assert.equal(answer.status, 201, `${type} ${coding}: ${answer.text}`);
    }
});

test('a body without a content type is refused', async (t) => {
  const purser = await openTestServer(t);
  await assertNothingMoves(purser, async () => {
    const headers = { 'idempotency-key': 'a', 'content-length': '31' };
    const body = '{"name":"a","budget_cents":100}';
    const answer = await sendRaw(purser, 'POST', '/v1/wallets', { token: purser.accountKey, headers, body });
    assertRefused(answer, 415, 'unsupported_media_type');
  });
});

test('a request that takes no body is answered whatever is sent along', async (t) => {
  const purser = await openTestServer(t);
  for (const body of ['{}', 'not JSON', ' '.repeat(100_000)]) {
    const { token } = await purser.openWallet();
    const answer = await sendRaw(purser, 'POST', '/v1/run/close', {
      token,
      headers: { 'content-type': 'text/plain' },
      body,
    });
    assert.equal(answer.status, 200, answer.text);
  }
});

test('8 MiB can be uploaded, and not a byte more, though its JSON would be allowed to be longer', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const upload = (bytes: number) => {
    const body = { id: 'res_none', path: '/a', content_base64: Buffer.alloc(bytes, 1).toString('base64') };
    return purser.ask('POST', '/v1/compute/upload', { token, body });
  };
  await assertNothingMoves(purser, async () => {
    assertRefused(
      await upload(8 * 1024 * 1024),
      404,
      'not_found',
      'it may be uploaded, but there is nowhere to put it',
    );
    for (const more of [1, 2, 3])
      assertRefused(await upload(8 * 1024 * 1024 + more), 413, 'payload_too_large', `${more} more`);
  });
});

test('a client that goes away in the middle of its body is refused, and is no error of ours', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const heard = Promise.withResolvers<string>();
  t.mock.method(purser.app.events, 'refused', heard.resolve);
  await assertNothingMoves(purser, async () => {
    const { host, port } = purser.app.address;
    const socket = connect(port, host);
    const start = 'POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nIdempotency-Key: gone';
    const head = `${start}\r\nAuthorization: Bearer ${token}`;
    socket.write(`${head}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"model":`, () =>
      resetConnection(socket),
    );
    assert.equal(await heard.promise, 'invalid_request');
  });
});
