import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { duplexPair } from 'node:stream';
import type { TestContext } from 'node:test';
import { parseAddress } from '../../src/egress/addresses.ts';
import { parseList } from '../../src/egress/list.ts';
import { createLookUp, type Outside, systemOutside } from '../../src/egress/outside.ts';
import { type Secrets, serveConnection } from '../../src/egress/proxy.ts';
import { createTally } from '../../src/egress/tally.ts';

export const PUBLIC = '93.184.216.34';

/** The secrets of a lease without any. */
export const NO_SECRETS: Secrets = {
  replacements: () => [],
  authority: () => assert.fail('nothing is to be ended'),
  enter: () => () => {},
};

/** A server on loopback that keeps what it is sent, and answers each connection with `answer` at once. */
export async function openSite(t: TestContext, answer = '') {
  const said: string[] = [];
  const sockets: Socket[] = [];
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    const at = said.push('') - 1;
    sockets.push(socket);
    socket.on('error', () => {}).on('end', () => socket.end());
    socket.on('data', (piece) => {
      said[at] += piece.toString('latin1');
      if (answer) socket.end(answer);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    for (const it of sockets) it.destroy();
    server.close();
  });
  return { port: (server.address() as AddressInfo).port, said, sockets };
}

/** A proxy whose name servers and connections are the test's: every address leads to the site. */
export function openProxy(
  lists: string[][],
  port: number,
  names: Record<string, string[]> = {},
  own: string[] = [],
  dial = () => connect({ host: '127.0.0.1', port, allowHalfOpen: true }),
  secrets: Secrets = NO_SECRETS,
  trust: Outside['trust'] = systemOutside.trust,
) {
  const dialled: string[] = [];
  const asked: string[] = [];
  const refusals: string[] = [];
  const tally = createTally();
  let isOver = false;
  let parsed = lists.map(parseList);
  const checks = new Set<() => void>();
  const outside = {
    async lookUp(name: string) {
      asked.push(name);
      return names[name] ?? [];
    },
    dial(address: string, at: number) {
      dialled.push(`${address} ${at}`);
      return dial();
    },
    trust,
    isOwn: (it: { family: number; value: bigint }) => own.some((one) => parseAddress(one)?.value === it.value),
  };
  const world = { ...outside, lookUp: createLookUp(outside) };
  const gate = {
    id: 'res_1',
    lists: () => (isOver ? undefined : parsed),
    watch(check: () => void) {
      checks.add(check);
      return () => void checks.delete(check);
    },
    passed: tally.add,
    secrets,
    refused(host: string, reason: string) {
      refusals.push(reason);
      tally.refuse(host);
    },
  };
  return {
    ...{ dialled, asked, refusals, tally },
    end: () => {
      isOver = true;
    },
    /** Changes the lists, and has open connections checked. */
    change(lists: string[][]) {
      parsed = lists.map(parseList);
      for (const it of checks) it();
    },
    checkCount: () => checks.size,
    /** Opens a connection of the lease. */
    open(): { client: Duplex; cut: () => void; said: () => string; served: Promise<void>; over: Promise<unknown> } {
      const [client, there] = duplexPair();
      let said = '';
      client
        .on('error', () => {})
        .on('data', (piece) => {
          said += piece.toString('latin1');
        });
      there.on('error', () => {});
      const over = new Promise((resolve) => client.once('end', resolve).once('close', resolve));
      return {
        client,
        cut: () => there.destroy(),
        said: () => said,
        served: serveConnection(there, gate, world),
        over,
      };
    },
    /** Sends a whole request, and returns the status of the answer. */
    async ask(text: string): Promise<string> {
      const it = this.open();
      it.client.write(Buffer.from(text, 'latin1'));
      await it.over;
      return it.said().slice(9, 12);
    },
  };
}

/** A ClientHello that names these servers, in records of `recordBytes`. */
export function clientHello(names: string[], { extra = Buffer.alloc(0), recordBytes = 16_384 } = {}): Buffer {
  const u16 = (value: number) => Buffer.from([value >> 8, value & 255]);
  const field = (size: number, it: Buffer) => {
    const length = Buffer.alloc(size);
    length.writeUIntBE(it.length, 0, size);
    return Buffer.concat([length, it]);
  };
  const sni = names.map((it) =>
    Buffer.concat([u16(0), field(2, field(2, Buffer.concat([Buffer.from([0]), field(2, Buffer.from(it))])))]),
  );
  const body = Buffer.concat([
    u16(0x0303),
    Buffer.alloc(32),
    field(1, Buffer.alloc(0)),
    field(2, u16(0x1301)),
    field(1, Buffer.alloc(1)),
    field(2, Buffer.concat([...sni, extra])),
  ]);
  const message = Buffer.concat([Buffer.from([1]), field(3, body)]);
  const records: Buffer[] = [];
  for (let at = 0; at < message.length; at += recordBytes)
    records.push(Buffer.from([22, 3, 1]), field(2, message.subarray(at, at + recordBytes)));
  return Buffer.concat(records);
}
