import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { TestContext } from 'node:test';
import { DEMO_COMPUTE } from '../../src/demo/providers.ts';
import { type Asked, openTestServer, type TestServerOptions } from '../helper/server.ts';

export const TAR = 'application/x-tar';
export const BYTES = 'application/octet-stream';

/** A lease that is a process of this machine, and a directory of it. */
export async function openLocalLease(t: TestContext, options: TestServerOptions = {}) {
  const purser = await openTestServer(t, { local: DEMO_COMPUTE, ...options });
  const { token, id: walletId } = await purser.openWallet();
  const spec = { gpu: null, gpus: 0, cpus: 1, memory_gib: 1, max_seconds: 600 };
  const rent = async (by = token) => {
    const body = { provider: 'provider_one', spec };
    const made = await purser.ask('POST', '/v1/compute/create', { token: by, key: randomUUID(), body });
    assert.equal(made.body.status, 'running', made.text);
    return made.body.id as string;
  };
  const id = await rent();
  const upload = (path: string, body: unknown, type: string, asked: Asked = {}) =>
    purser.ask('POST', `/v1/compute/upload?${new URLSearchParams({ id, path })}`, {
      token,
      body,
      ...asked,
      headers: { 'content-type': type, ...asked.headers },
    });
  const sh = async (command: string): Promise<string> => {
    const { status, body, text } = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command } });
    assert.equal(status, 200, text);
    return body.stdout + body.stderr;
  };
  return { purser, token, walletId, id, rent, upload, sh };
}

/** A directory of this machine with these files, by name, and tar's archive of it. */
export function treeOf(t: Pick<TestContext, 'after'>, files: Record<string, string | Buffer>, format = 'gnu') {
  const root = mkdtempSync(join(tmpdir(), 'purser-tree-'));
  t.after(() => rmSync(root, { recursive: true, force: true }));
  for (const [name, content] of Object.entries(files)) {
    mkdirSync(join(root, dirname(name)), { recursive: true });
    writeFileSync(join(root, name), content);
  }
  const pack = () => execFileSync('tar', [`--format=${format}`, '-cf', '-', '.'], { cwd: root, maxBuffer: 2 ** 30 });
  return { root, pack };
}

export type Member = {
  name: string;
  type?: string;
  content?: Buffer | string;
  linkName?: string;
  mode?: number;
  uid?: number;
  gid?: number;
  prefix?: string;
  /** The size that the header says, where it is not that of the content. */
  size?: number;
};

/** One entry of an archive, as it may be written by nobody. */
export function member({
  name,
  type = '0',
  content = '',
  linkName = '',
  mode = 0o644,
  uid = 0,
  gid = 0,
  ...it
}: Member) {
  const bytes = Buffer.from(content);
  const block = Buffer.alloc(512);
  const octal = (value: number, digits: number) => `${value.toString(8).padStart(digits, '0')}\0`;
  block.write(name, 0, 100, 'latin1');
  block.write(octal(mode, 7), 100);
  block.write(octal(uid, 7), 108);
  block.write(octal(gid, 7), 116);
  block.write(octal(it.size ?? bytes.length, 11), 124);
  block.write(octal(1_700_000_000, 11), 136);
  block.write('        ', 148);
  block.write(type, 156, 'latin1');
  block.write(linkName, 157, 100, 'latin1');
  block.write('ustar\x0000', 257);
  block.write(it.prefix ?? '', 345, 155, 'latin1');
  const sum = block.reduce((all, byte) => all + byte, 0);
  block.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return Buffer.concat([block, bytes, Buffer.alloc((512 - (bytes.length % 512)) % 512)]);
}
export const END = Buffer.alloc(1024);
export const archive = (...members: (Member | Buffer)[]) =>
  Buffer.concat([...members.map((it) => (Buffer.isBuffer(it) ? it : member(it))), END]);
/** An extended header with these values, for the next entry or for all. */
export function extended(values: Record<string, string>, type: 'x' | 'g' = 'x'): Buffer {
  const lines = Object.entries(values).map(([key, value]) => {
    const rest = Buffer.byteLength(` ${key}=${value}\n`);
    const digits = String(rest + String(rest + 1).length).length;
    return `${rest + digits} ${key}=${value}\n`;
  });
  return member({ name: 'PaxHeaders/x', type, content: lines.join('') });
}
