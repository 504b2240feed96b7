import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import test from 'node:test';
import { longestTurn } from '../helper/turns.ts';
import { inside, openE2b, openInside } from './shared.ts';

type Inside = Pick<Awaited<ReturnType<typeof openInside>>, 'purser' | 'headers'>;
const base64 = (text: string) => Buffer.from(text).toString('base64');

function envelope(message: object): Buffer {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(5);
  head.writeUInt32BE(text.length, 1);
  return Buffer.concat([head, text]);
}

/** A request of StreamInput that is sent piece by piece. `end` returns the messages of its answer. */
function openInput({ purser, headers }: Inside) {
  const asked = request(`${purser.url}/v1/e2b/envd/process.Process/StreamInput`, {
    method: 'POST',
    agent: false,
    headers: { ...headers, 'content-type': 'application/connect+json' },
  });
  return {
    write: (bytes: Buffer) => new Promise<void>((resolve) => void asked.write(bytes, () => resolve())),
    async end(): Promise<string> {
      asked.end();
      const [answer] = (await once(asked, 'response')) as [IncomingMessage];
      assert.equal(answer.statusCode, 200);
      return Buffer.concat(await answer.toArray()).toString('latin1');
    },
  };
}

test('a stream of input reaches its program as it comes, however its messages are cut', async (t) => {
  const inside = await openInside(t);
  const cat = await inside.run('cat', { stdin: true });
  const pid = await cat.pid();
  const input = openInput(inside);
  await input.write(envelope({ start: { process: { pid } } }));
  await input.write(envelope({ data: { input: { stdin: base64('one ') } } }));
  await cat.until('one ');
  const rest = Buffer.concat([envelope({ keepalive: {} }), envelope({ data: { input: { stdin: base64('two') } } })]);
  for (const byte of rest) await input.write(Buffer.from([byte]));
  assert.equal(await input.end(), '\0\0\0\0\x02{}\x02\0\0\0\x02{}');
  assert.equal((await inside.rpc('process.Process/CloseStdin', { process: { pid } })).status, 200);
  assert.equal((await cat.end()).end.exitCode, 0);
  assert.equal(cat.printed('stdout'), 'one two');
});

test('a stream of input that names no program, or breaks off, is refused', async (t) => {
  const inside = await openInside(t);
  const sent = async (...pieces: Buffer[]) => {
    const input = openInput(inside);
    for (const it of pieces) await input.write(it);
    return input.end();
  };
  const data = envelope({ data: { input: { stdin: base64('x') } } });
  assert.match(await sent(data), /invalid_argument.*must come first/);
  assert.match(await sent(envelope({ start: { process: { pid: 1 } } }), data), /not_found/);
  assert.match(await sent(data.subarray(0, -1)), /invalid_argument.*breaks off/);
  assert.match(await sent(Buffer.from([0, 255, 255, 255, 255])), /invalid_argument/);
});

const MESSAGE_COUNT = 40_000;
/** Far longer than a turn takes with others between the messages. */
const TURN_MILLISECONDS_MAX = 200;

test('many small messages of input, which come at once, leave others their turn, and are let in together', async (t) => {
  const { purser, create } = await openE2b(t);
  const { headers } = inside(purser, (await create()).body);
  const part = envelope({});
  const flood = Buffer.concat(Array.from({ length: MESSAGE_COUNT }, () => part));
  const looks = t.mock.method(purser.app.clock, 'now'); // Each look whether the sandbox still runs reads the clock.
  const turn = await longestTurn(async () => {
    const input = openInput({ purser, headers });
    await input.write(flood);
    assert.equal(await input.end(), '\0\0\0\0\x02{}\x02\0\0\0\x02{}');
  });
  assert.ok(turn < TURN_MILLISECONDS_MAX, `${flood.length} bytes take a turn of ${turn.toFixed(0)} ms`);
  assert.ok(looks.mock.callCount() < MESSAGE_COUNT / 10, `${looks.mock.callCount()} looks`);
});
