import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import type { TestContext } from 'node:test';
import { DEMO_COMPUTE } from '../../src/demo/providers.ts';
import { type Asked, openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { waitFor } from '../helper/waiting.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';

/** The templates of the tests: one that cannot be extended, and one that can. */
export const TEMPLATES = {
  base: { provider: 'provider_three', spec: { offer_id: 'small', disk_gb: 5 } },
  fixed: { provider: 'provider_one', spec: { cpus: 0.5, memory_gib: 0.25 } },
};
/** What 300 s of `base` cost. */
export const PRICE = '0.03';

export type Sandbox = { sandboxID: string; envdAccessToken: string; trafficAccessToken: string; domain: string };

/** A server that E2B's SDKs can use, whose machines are in memory, and a wallet. */
export async function openE2b(
  t: TestContext,
  options: TestServerOptions & { templates?: object; wallet?: Record<string, unknown> } = {},
) {
  const { templates, wallet: terms, settings, ...more } = options;
  const compute = { templates: { ...TEMPLATES, ...templates }, ...(settings?.compute as object) };
  const purser = await openMemoryServer(t, { ...more, settings: { ...settings, compute } });
  const wallet = await purser.openWallet({ ...LONG, ...terms });
  /** A request to the API, with its key as the SDKs send it. */
  const api = (method: string, path: string, asked: Asked & { as?: string } = {}) => {
    const { as = wallet.token, headers, ...rest } = asked;
    return purser.ask(method, `/v1/e2b${path}`, { ...rest, headers: { 'x-api-key': as, ...headers } });
  };
  const create = (body: object = {}, asked: Asked & { as?: string } = {}) =>
    api('POST', '/v2/sandboxes', { body: { templateID: 'base', ...body }, ...asked });
  return { purser, wallet, api, create };
}

/** The message of a stream, with the flag that says whether it is the last. */
type Message = { isLast: boolean; body: any };

/** A call to a stream of E2B's agent, as the SDKs make it. */
export async function openStream(url: string, path: string, headers: Record<string, string>, body: object) {
  const text = Buffer.from(JSON.stringify(body));
  const head = Buffer.alloc(5);
  head.writeUInt32BE(text.length, 1);
  const asked = request(`${url}/v1/e2b/envd/${path}`, {
    method: 'POST',
    agent: false,
    headers: { 'content-type': 'application/connect+json', 'connect-protocol-version': '1', ...headers },
  });
  asked.on('error', () => {}); // Its client leaves.
  asked.end(Buffer.concat([head, text]));
  const [answer] = (await once(asked, 'response')) as [IncomingMessage];
  assert.equal(answer.statusCode, 200);
  assert.equal(answer.headers['content-type'], 'application/connect+json');
  const messages: Message[] = [];
  const changed = new Set<() => void>();
  let waiting = Buffer.alloc(0);
  let hasEnded = false;
  answer.on('error', () => {});
  answer.on('data', (chunk: Buffer) => {
    waiting = Buffer.concat([waiting, chunk]);
    while (waiting.length >= 5 && waiting.length >= 5 + waiting.readUInt32BE(1)) {
      const end = 5 + waiting.readUInt32BE(1);
      messages.push({ isLast: waiting[0] === 2, body: JSON.parse(waiting.subarray(5, end).toString()) });
      waiting = waiting.subarray(end);
    }
    for (const tell of changed) tell();
  });
  answer.once('close', () => {
    hasEnded = true;
    for (const tell of changed) tell();
  });
  /** Resolves when `is` holds for what has come. */
  const until = (what: string, is: () => boolean) =>
    waitFor(
      what,
      new Promise<void>((resolve, reject) => {
        const look = () => {
          if (is()) resolve();
          else if (hasEnded) reject(new Error(`${what}: the stream ended with ${JSON.stringify(messages)}`));
        };
        changed.add(look);
        look();
      }),
    );
  const begun = () => until('the start', () => messages.length > 0);
  const printed = (name: 'stdout' | 'stderr' | 'pty') =>
    Buffer.concat(messages.map((it) => Buffer.from(it.body.event?.data?.[name] ?? '', 'base64'))).toString();
  return {
    messages,
    printed,
    /** Resolves when the first message is there. */
    begun,
    /** The process id, from the first event. */
    async pid(): Promise<number> {
      await begun();
      assert.equal(typeof messages[0]?.body.event?.start?.pid, 'number', JSON.stringify(messages[0]));
      return messages[0]?.body.event.start.pid;
    },
    until: (text: string | RegExp, name: 'stdout' | 'stderr' | 'pty' = 'stdout') =>
      until(`${text}`, () => (typeof text === 'string' ? printed(name).includes(text) : text.test(printed(name)))),
    /** The event of the end, and the error of the last message. */
    async end(): Promise<{ end: any; error: any }> {
      await until('the end', () => messages.at(-1)?.isLast === true);
      const end = messages.map((it) => it.body.event?.end).find((it) => it);
      return { end, error: messages.at(-1)?.body.error };
    },
    leave: () => asked.destroy(),
  };
}

/** A server whose sandboxes are processes of this machine, one sandbox, and calls into it. */
export async function openInside(
  t: TestContext,
  body: object = {},
  { settings = {}, ...options }: TestServerOptions = {},
) {
  const compute = { templates: TEMPLATES };
  const purser = await openTestServer(t, { ...options, local: DEMO_COMPUTE, settings: { compute, ...settings } });
  const wallet = await purser.openWallet(LONG);
  const headers = { 'x-api-key': wallet.token };
  const made = await purser.ask('POST', '/v1/e2b/v2/sandboxes', { headers, body: { templateID: 'base', ...body } });
  assert.equal(made.status, 201, made.text);
  return { purser, wallet, ...inside(purser, made.body) };
}

/** Calls into a sandbox. */
export function inside(purser: TestServer, sandbox: Sandbox) {
  const headers = {
    'e2b-sandbox-id': sandbox.sandboxID,
    'e2b-sandbox-port': '49983',
    'x-access-token': sandbox.envdAccessToken,
  };
  const rpc = (path: string, body: object = {}, more: Record<string, string> = {}) =>
    purser.ask('POST', `/v1/e2b/envd/${path}`, { headers: { ...headers, ...more }, body });
  const stream = (path: string, body: object, more: Record<string, string> = {}) =>
    openStream(purser.url, path, { ...headers, ...more }, body);
  /** Starts a command line as `commands.run` does. */
  const run = (command: string, more: object = {}, over: Record<string, string> = {}) => {
    const { envs = {}, cwd, ...rest } = more as { envs?: object; cwd?: string };
    const process = { cmd: '/bin/bash', args: ['-l', '-c', command], envs, ...(cwd ? { cwd } : {}) };
    return stream('process.Process/Start', { process, stdin: false, ...rest }, over);
  };
  return { sandbox, headers, rpc, stream, run };
}
