import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import type http from 'node:http';
import test from 'node:test';
import { gzipSync } from 'node:zlib';
import ssh2 from 'ssh2';
import { deriveToken } from '../../src/access/token.ts';
import { IMAGE, openDocker, runAsRoot } from '../compute/engines/docker.ts';
import { said } from '../helper/sse.ts';
import { type FakeUpstream, hang } from '../helper/upstream.ts';
import { waitFor } from '../helper/waiting.ts';
import { type Attacked, exceptHonest, type Raw, requestText, underAttack } from './attacked.ts';

/** Abuse (docs/security.md): while each goes on an honest client pays for requests that must all succeed. */

const MIB = 1024 * 1024;
const CHAT = '/v1/chat/completions';
const POLLS_AT_FULL_SPEED = 300;
const PAUSE_MILLISECONDS = 100;
const ADDRESS_COUNT = 50;
/** As many requests as may wait on one connection. */
const AT_ONCE = 32;

const addressOf = (i: number) => `127.0.2.${(i % ADDRESS_COUNT) + 1}`;
const chatText = (content: string, more: object = {}) =>
  JSON.stringify({ model: 'chat', messages: [{ role: 'user', content }], max_tokens: 100, ...more });
const mib = (bytes: number) => `${Math.round(bytes / MIB)} MiB`;
const statusOf = ({ text }: Raw) => Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1] ?? 0);
const countOf = (all: readonly Raw[], status: number) => all.filter((it) => statusOf(it) === status).length;
const isOver = (it: Raw) => it.isClosed || statusOf(it) > 0;
const askedWith = ({ calls }: FakeUpstream, text: string) =>
  calls.filter((it) => JSON.stringify(it.body).includes(text)).length;
/** So many answers of each status; 0 is none. */
const tally = (all: readonly Raw[]) =>
  [...new Set(all.map(statusOf))].map((status) => `${countOf(all, status)} × ${status || 'no answer'}`).join(', ');

/** So many connections from fifty addresses, a hundred at a time. */
async function connectAll(connect: Attacked['connect'], count: number): Promise<Raw[]> {
  const all: Raw[] = [];
  while (all.length < count) {
    const more = Math.min(100, count - all.length);
    all.push(...(await Promise.all(Array.from({ length: more }, (_, i) => connect(addressOf(all.length + i))))));
  }
  return all;
}

/**
 * Resolves when this is so: it is looked again whenever an honest request was served. What takes longer waits for a time of the
 * server, and the honest client need not use up a processor in the meantime.
 */
async function until(served: Attacked['served'], what: string, isSo: () => boolean): Promise<void> {
  const come = async () => {
    for (let polls = 0; !isSo(); polls++) await served(1, polls < POLLS_AT_FULL_SPEED ? 0 : PAUSE_MILLISECONDS);
  };
  await waitFor(what, come());
}

/** Writes a byte a second on every connection, for as long as `run` takes. */
async function dripping(all: readonly Raw[], run: () => Promise<void>): Promise<void> {
  const drip = setInterval(() => {
    for (const { socket } of all) if (socket.writable) socket.write(' ');
  }, 1000);
  await run().finally(() => clearInterval(drip));
}

test('10,000 idle connections are borne, and closed', async (t) => {
  await underAttack(t, { openFiles: 20_000, growthMib: 450 }, async (it) => {
    const { connect, accepted, served, openFiles, resident } = it;
    const all = await connectAll(connect, 10_000);
    await accepted();
    const [open, during] = [openFiles(), resident()];
    await accepted();
    // On a busy machine the first are closed before the last have come.
    const closed = all.filter((it) => it.isClosed).length;
    assert(open + closed > 10_000, `${open} descriptors, ${closed} closed`);
    await until(served, 'all are closed', () => all.every((it) => it.isClosed));
    return `${open} descriptors, ${mib(during)} with them`;
  });
});

test('where there is no room for more connections, those who flood make it, and no request is cut off', async (t) => {
  await underAttack(t, { openFiles: 256, growthMib: 200 }, async ({ connect, accepted, served, openFiles }) => {
    let [max, opened] = [0, 0];
    for (let round = 0; round < 10; round++) {
      opened += (await connectAll(connect, 20)).length;
      opened += (await connectAll(connect, 180)).length;
      await accepted();
      max = Math.max(max, openFiles());
      await served(20);
    }
    assert(max < 256, `${max} descriptors`);
    return `${opened} connections on at most ${max} descriptors`;
  });
});

test('forms of strangers that never come to their end make room for others', async (t) => {
  await underAttack(t, { openFiles: 256, growthMib: 200 }, async ({ connect, accepted, served, server }) => {
    const { host, origin } = new URL(server.url);
    const head = `POST /sign-in/key HTTP/1.1\r\nhost: ${host}\r\norigin: ${origin}\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: 100\r\n\r\n`;
    for (let round = 0; round < 5; round++) {
      for (const { socket } of await connectAll(connect, 100)) socket.write(head);
      await served(20);
      await accepted();
    }
    return '500 forms without a body';
  });
});

// Together: each waits until the server's own time for it is over, 20 seconds and a minute.
test('what is slow on purpose is ended', { concurrency: true }, async (t) => {
  await Promise.all([
    t.test('headers that never come to their end are answered 408 in the end', async (t) => {
      await underAttack(t, { growthMib: 200 }, async ({ connect, served }) => {
        const all = await connectAll(connect, 1000);
        for (const { socket } of all) socket.write('GET /v1/budget HTTP/1.1\r\nhost: a\r\nx-slow: ');
        await dripping(all, () => until(served, 'all are closed', () => all.every((it) => it.isClosed)));
        assert.equal(countOf(all, 408), all.length, tally(all));
        return `${all.length} connections, ${tally(all)}`;
      });
    }),

    t.test('an answer that is not read is kept for one caller up to a bound, and for a minute', async (t) => {
      const usage = { prompt_tokens: 1, completion_tokens: 1 };
      const answer = JSON.stringify({ id: 'x', choices: [], usage, text: 'x'.repeat(16 * MIB) });
      const big = (_: unknown, response: http.ServerResponse) => {
        response.writeHead(200, { 'content-type': 'application/json' });
        response.end(answer);
      };
      await underAttack(t, { growthMib: 600 }, async (it) => {
        const { connect, served, server, stolen, upstream, resident, openFiles } = it;
        upstream.handle = exceptHonest(big);
        const body = chatText('big');
        assert.equal((await server.ask('POST', CHAT, { token: stolen, body, key: 'big' })).status, 200);
        const all = await connectAll(connect, 100);
        for (const { socket } of all) {
          socket.pause();
          socket.write(requestText(CHAT, stolen, body, { 'idempotency-key': 'big' }));
        }
        await served(100);
        const [during, open] = [resident(), openFiles()];
        await until(served, 'those that read nothing are ended', () => openFiles() < open);
        await served(100);
        for (const { socket } of all) socket.resume();
        await until(served, 'all are ended or refused', () => all.every(isOver));
        const whole = all.filter((it) => it.text.length > 16 * MIB).length;
        assert(countOf(all, 429) > 50, tally(all));
        return `${all.length} replays of 16 MiB, ${mib(during)} with them, ${tally(all)}, ${whole} whole`;
      });
    }),
  ]);
});

test('bodies that never come to their end take a bounded memory, and leave room for others', async (t) => {
  await underAttack(t, { growthMib: 500 }, async ({ connect, served, wallet }) => {
    const tokens = await Promise.all(Array.from({ length: 6 }, wallet));
    const all = await connectAll(connect, 200);
    const piece = Buffer.alloc(4 * MIB, ' ');
    all.forEach(({ socket }, i) => {
      const headers = { 'content-length': String(8 * MIB), 'idempotency-key': randomUUID() };
      socket.write(requestText(CHAT, tokens[i % tokens.length] as string, '', headers));
      socket.write(piece);
    });
    await dripping(all, () => until(served, 'most of them are refused', () => countOf(all, 429) >= 100));
    await served(200);
    return `${all.length} × 4 MiB by ${tokens.length} wallets, ${tally(all)}`;
  });
});

test('of a stream that nobody reads the upstream is asked for no more than fits a few buffers', async (t) => {
  await underAttack(t, { growthMib: 500 }, async ({ connect, served, server, stolen, upstream }) => {
    const piece = said('x'.repeat(16 * 1024));
    let written = 0;
    upstream.handle = exceptHonest(async (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const gone = new AbortController();
      response.once('close', () => gone.abort());
      while (!response.destroyed) {
        written += piece.length;
        if (!response.write(piece)) await once(response, 'drain', { signal: gone.signal }).catch(() => {});
      }
    });
    const { body } = await server.ask('POST', '/v1/router/key', { token: stolen, body: {} });
    const text = requestText('/v1/router/chat/completions', body.api_key, chatText('stream', { stream: true }));
    const all = await connectAll(connect, 100);
    for (const { socket } of all) {
      socket.pause();
      socket.write(text);
    }
    await served(300);
    assert(written > all.length * piece.length && written < all.length * 12 * MIB, mib(written));
    return `${all.length} streams without end, ${mib(written)} written by the upstream`;
  });
});

test('headers without end are refused, of whatever kind', async (t) => {
  await underAttack(t, { growthMib: 200 }, async ({ connect, served }) => {
    const floods = [
      `GET /v1/budget HTTP/1.1\r\nhost: a\r\nx-long: ${'a'.repeat(MIB)}`,
      `GET /v1/budget HTTP/1.1\r\n${Array.from({ length: 20_000 }, (_, i) => `x-${i}: ${'b'.repeat(40)}\r\n`).join('')}`,
      `GET /v1/budget HTTP/1.1\r\nhost: a\r\ncookie: ${'c=d; '.repeat(200_000)}`,
      `GET /${'a'.repeat(MIB)} HTTP/1.1\r\nhost: a\r\n\r\n`,
    ];
    const all = await connectAll(connect, 400);
    all.forEach(({ socket }, i) => {
      socket.write(floods[i % floods.length] as string);
    });
    await until(served, 'all are closed', () => all.every((it) => it.isClosed));
    // Where the refusal met what was still on its way, the system has thrown it away.
    assert.equal(countOf(all, 431) + countOf(all, 0), all.length, tally(all));
    return `${all.length} heads of a megabyte, ${tally(all)}`;
  });
});

test('huge and compressed bodies are refused before they are read', async (t) => {
  await underAttack(t, { growthMib: 200 }, async ({ connect, served, stolen }) => {
    const bomb = gzipSync(Buffer.alloc(256 * MIB), { level: 9 });
    const length = { 'content-length': String(bomb.length) };
    const kinds: Record<string, string>[] = [
      { ...length, 'content-encoding': 'gzip' },
      { ...length, 'content-type': 'application/gzip' },
      { 'content-length': String(1024 * MIB) },
    ];
    const all = await connectAll(connect, 300);
    all.forEach(({ socket }, i) => {
      socket.write(requestText(CHAT, stolen, '', { ...kinds[i % kinds.length], 'idempotency-key': randomUUID() }));
      socket.write(bomb);
    });
    await until(served, 'all are refused', () => all.every(isOver));
    assert.equal(countOf(all, 413) + countOf(all, 415) + countOf(all, 0), all.length, tally(all));
    return `${all.length} bodies, ${tally(all)}`;
  });
});

test('requests that are pipelined are answered one after the other, and too many end the connection', async (t) => {
  await underAttack(t, { growthMib: 300 }, async ({ connect, served, stolen, upstream }) => {
    upstream.handle = exceptHonest(hang);
    const one = () => requestText(CHAT, stolen, chatText('pipelined'), { 'idempotency-key': randomUUID() });
    const many = (count: number) => Array.from({ length: count }, one).join('');
    const patient = await connectAll(connect, 20);
    for (const { socket } of patient) socket.write(many(10));
    const rude = await connectAll(connect, 50);
    const wrong = 'GET /v1/budget HTTP/1.1\r\nhost: a\r\nauthorization: Bearer svc_agent_no\r\n\r\n'.repeat(50_000);
    for (const { socket } of rude) socket.write(wrong);
    const hung = await connectAll(connect, 50);
    for (const { socket } of hung) socket.write(many(500));
    await until(served, 'those that flood behind a request are ended', () => hung.every((it) => it.isClosed));
    await served(200);
    const asked = askedWith(upstream, 'pipelined');
    assert(patient.every((it) => !it.isClosed));
    assert(asked >= patient.length && asked <= patient.length + hung.length, `${asked} calls`);
    return `${rude.length} × 50,000 and ${hung.length} × 500 requests, ${asked} calls`;
  });
});

test('a thousand wrong tokens a second cost little and disturb nobody', async (t) => {
  const limits = { wallet_requests_per_minute: 0, account_requests_per_minute: 0, failed_auth_per_minute: 60 };
  await underAttack(t, { growthMib: 250, settings: { limits } }, async ({ connect, served }) => {
    const secret = randomBytes(32);
    let count = 0;
    const wrong = () => {
      // Every other one has a right checksum: only the database knows that there is none such.
      const token = count++ % 2 ? deriveToken('wallet', secret, `wal_${count}`) : `cnv_live_${count}`;
      return `GET /v1/budget HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ${token}\r\n\r\n`;
    };
    const all = await connectAll(connect, 50);
    const answersOf = ({ text }: Raw) => text.split('HTTP/1.1 ').length - 1;
    const started = performance.now();
    await Promise.all(
      all.map(async (raw) => {
        for (let round = 1; round <= 20; round++) {
          raw.socket.write(Array.from({ length: AT_ONCE }, wrong).join(''));
          while (answersOf(raw) < round * AT_ONCE) await once(raw.socket, 'data');
        }
      }),
    );
    const rate = Math.round(count / ((performance.now() - started) / 1000));
    const answered = (status: number) =>
      all.reduce((sum, { text }) => sum + text.split(`HTTP/1.1 ${status} `).length - 1, 0);
    assert.equal(answered(401) + answered(429), count);
    assert(answered(429) > count / 2, `${answered(429)} × 429`);
    await served(20);
    return `${count} wrong tokens, ${rate} a second, ${answered(401)} × 401 and ${answered(429)} × 429`;
  });
});

test('many who wait for the same answer with a large body wait in a bounded memory', async (t) => {
  await underAttack(t, { growthMib: 500, upstreamSeconds: 30 }, async ({ connect, served, stolen, upstream }) => {
    upstream.handle = exceptHonest(hang);
    const all: Awaited<ReturnType<typeof connectAll>> = [];
    const text = requestText(CHAT, stolen, chatText('z'.repeat(4 * MIB)), { 'idempotency-key': 'same' });
    // A few at a time: what is refused is what waits, not what is on its way, nor a connection that waits for its turn.
    // On a busy machine some have waited to the end, and leave room to others, before the last ones come.
    while (all.length < 200 || (countOf(all, 429) <= 100 && all.length < 2000)) {
      const few = await connectAll(connect, 5);
      for (const { socket } of few) socket.write(text);
      all.push(...few);
      await served(2);
    }
    await until(served, 'all are answered', () => all.every(isOver));
    assert(countOf(all, 429) > 100, tally(all));
    assert.equal(askedWith(upstream, 'zzzz'), 1, `${tally(all)} ${all.find((it) => statusOf(it) !== 429)?.text}`);
    return `${all.length} × 4 MiB under one key, ${tally(all)}`;
  });
});

test('requests whose clients went away are bounded for each wallet', async (t) => {
  await underAttack(t, { openFiles: 1024, growthMib: 200 }, async ({ connect, served, stolen, upstream }) => {
    upstream.handle = exceptHonest(hang);
    let [refused, asked] = [0, 0];
    for (let round = 0; round < 10; round++) {
      const all = await connectAll(connect, 50);
      for (const { socket } of all)
        socket.write(requestText(CHAT, stolen, chatText('left behind'), { 'idempotency-key': randomUUID() }));
      const before = asked;
      await until(served, 'each is refused or in flight', () => {
        asked = askedWith(upstream, 'left behind');
        return countOf(all, 429) + asked - before === all.length;
      });
      refused += countOf(all, 429);
      for (const { socket } of all) socket.destroy();
    }
    assert(asked <= 80, `${asked} calls`); // A quarter of a third of what 1024 descriptors leave.
    assert.equal(refused, 500 - asked);
    return `500 requests that were left behind, ${asked} of them in flight, ${refused} × 429`;
  });
});

test('a body of 8 MiB of brackets costs what its first bytes cost', async (t) => {
  await underAttack(t, { growthMib: 250 }, async ({ connect, served, stolen }) => {
    const text = requestText(CHAT, stolen, '['.repeat(8 * MIB), { 'idempotency-key': 'brackets' });
    const all: Raw[] = [];
    for (let i = 0; i < 12; i++) {
      const raw = await connect();
      all.push(raw);
      raw.socket.write(text);
      await until(served, 'it is refused', () => statusOf(raw) > 0);
    }
    assert.equal(countOf(all, 400), all.length, tally(all));
    return `${all.length} × 8 MiB, ${tally(all)}`;
  });
});

test('a body in chunks of one byte costs no more than its bytes', async (t) => {
  await underAttack(t, { growthMib: 250 }, async ({ connect, served, stolen }) => {
    const headers = { 'transfer-encoding': 'chunked', 'idempotency-key': 'crumbs' };
    const raw = await connect();
    raw.socket.write(requestText(CHAT, stolen, '', headers).replace(/content-length: 0\r\n/, ''));
    const crumbs = Buffer.from('1\r\nz\r\n'.repeat(256 * 1024));
    for (let i = 0; i < 12; i++) if (!raw.socket.write(crumbs)) await once(raw.socket, 'drain');
    raw.socket.write('0\r\n\r\n');
    await until(served, 'it is refused', () => statusOf(raw) > 0);
    assert.equal(statusOf(raw), 400, raw.text);
    return `${12 * 256 * 1024} chunks of one byte, ${tally([raw])}`;
  });
});

test('answers whose clients have left are let go at once', async (t) => {
  await underAttack(t, { growthMib: 500 }, async ({ connect, served, server, stolen, upstream }) => {
    const asked: http.ServerResponse[] = [];
    upstream.handle = exceptHonest((_, response) => void asked.push(response));
    const all = await connectAll(connect, 18);
    for (const { socket } of all)
      socket.write(requestText(CHAT, stolen, chatText('abandoned'), { 'idempotency-key': randomUUID() }));
    await until(served, 'all are in flight', () => asked.length === all.length);
    for (const { socket } of all) socket.destroy();
    await served(50);
    const usage = { prompt_tokens: 1, completion_tokens: 1 };
    const answer = JSON.stringify({ id: 'x', choices: [], usage, text: 'x'.repeat(4 * MIB) });
    for (const response of asked) response.writeHead(200, { 'content-type': 'application/json' }).end(answer);
    const isSettled = async () => {
      const { body } = await server.ask('GET', '/v1/budget', { token: stolen });
      return Number(body.held_usd) === 0;
    };
    while (!(await isSettled())) await served(10);
    await served(10);
    const { status, text } = await server.ask('POST', '/v1/router/key', { token: stolen, body: {} });
    assert.equal(status, 200, text);
    return `${all.length} abandoned answers of 4 MiB`;
  });
});

const compute = (socket: string) => ({
  ssh: { listen: '127.0.0.1:0' },
  compute: {
    provider_one: {
      backend: 'container',
      socket,
      image: IMAGE,
      prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
      limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
    },
  },
});

/** A lease of the attacker, once it runs. */
async function lease({ server, stolen }: Attacked): Promise<string> {
  const body = { provider: 'provider_one', spec: { cpus: 0.5, memory_gib: 0.25, max_seconds: 600 } };
  const { body: made, text } = await server.ask('POST', '/v1/compute/create', {
    token: stolen,
    key: randomUUID(),
    body,
  });
  assert.equal(made.status, 'running', text);
  return made.id;
}

test('the output of commands whose clients have left is not kept', async (t) => {
  const engine = await openDocker(t);
  if (!engine) return;
  await underAttack(t, { growthMib: 250, settings: compute(engine.socket) }, async (it) => {
    const { connect, served, server, stolen } = it;
    const ids = [await lease(it), await lease(it), await lease(it)];
    const exec = (id: string, command: string) => JSON.stringify({ id, command, timeout: 60 });
    const flood = 'head -c 1M /dev/zero; head -c 1M /dev/zero >&2; while [ ! -e /tmp/enough ]; do sleep 1; done';
    const all = await connectAll(connect, 150);
    all.forEach(({ socket }, i) => {
      socket.write(requestText('/v1/compute/exec', stolen, exec(ids[i % ids.length] as string, flood)));
    });
    await until(served, 'all but 16 of each resource are answered', () => all.filter(isOver).length >= 150 - 3 * 16);
    const said = tally(all);
    const refused = countOf(all, 429);
    for (const { socket } of all) socket.destroy();
    for (const { Id } of await engine.docker.listContainers())
      await runAsRoot(engine.docker, Id, 'touch', '/tmp/enough');
    for (const id of ids) {
      const token = stolen;
      const last = () => server.ask('POST', '/v1/compute/exec', { token, body: exec(id, 'echo over') });
      let answer = await last();
      for (; answer.status === 429; answer = await last()) await served(10);
      assert.equal(answer.body.stdout, 'over\n', answer.text);
    }
    assert(refused >= all.length - 3 * 16, said);
    return `${all.length} commands with 2 MiB of output, ${said}`;
  });
});

/** A tenant's own /bin/sh: under it every directory has a listing of 15 MB. */
const LYING_SHELL = `#!/bin/busybox ash
if [ "$1" = -c ]; then
  script=$(printf '%s' "$2" | sed 's/^list() (/&head -c 15000000 \\/dev\\/zero; exit 0/')
  shift 2
  set -- -c "$script" "$@"
fi
exec /bin/busybox ash "$@"
`;

test('sftp listings of whatever size take a bounded memory', async (t) => {
  const engine = await openDocker(t);
  if (!engine) return;
  await underAttack(t, { growthMib: 400, settings: compute(engine.socket) }, async (it) => {
    const { served, server, stolen, resident } = it;
    const id = await lease(it);
    const upload = { id, path: '/work/sh', content_base64: Buffer.from(LYING_SHELL).toString('base64') };
    const uploaded = await server.ask('POST', '/v1/compute/upload', { token: stolen, body: upload });
    assert.equal(uploaded.status, 200, uploaded.text);
    const install = { id, command: 'chmod 755 /work/sh && mv -f /work/sh /bin/sh' };
    const { body } = await server.ask('POST', '/v1/compute/exec', { token: stolen, body: install });
    assert.equal(body.exit_code, 0, JSON.stringify(body));
    const access = (await server.ask('POST', '/v1/compute/ssh', { token: stolen, body: { id } })).body;
    const client = new ssh2.Client();
    const { host, port, username, private_key: privateKey } = access;
    await once(client.connect({ host, port, username, privateKey }), 'ready');
    t.after(() => client.destroy());
    const openSftp = () =>
      new Promise<ssh2.SFTPWrapper>((resolve, reject) =>
        client.sftp((error, opened) => (error ? reject(error) : resolve(opened))),
      );
    const sessions = await Promise.all(Array.from({ length: 16 }, openSftp));
    const list = (it: ssh2.SFTPWrapper) =>
      new Promise<boolean>((resolve) => it.opendir('/', (error) => resolve(!error)));
    const tried = await Promise.all(sessions.map(list));
    await served(50);
    const open = tried.filter(Boolean).length;
    assert(open <= 4, `${open} of 15 MB are open`);
    assert.equal(await list(sessions[0] as ssh2.SFTPWrapper), open < 4, 'what was refused takes no room');
    const during = resident();
    client.destroy();
    return `${tried.length} listings of 15 MB, ${open} open, ${mib(during)} with them`;
  });
});
