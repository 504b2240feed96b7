import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, lstatSync, mkdtempSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { archive, extended, type Member, member, TAR } from '../http/trees-shared.ts';
import { ROOT, run } from './examples.ts';
import type { Language } from './trees-shared.ts';

const ID = 'res_01k9v3c2mq8r5t7w1x4z6b0d2f';

/** Has the client fetch a tree from a machine whose `tar` is the tenant's. Returns the directory, and the code of the refusal. */
async function fetchFrom(t: TestContext, language: Language, program: string, content: Buffer) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-sdk-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const server = createServer((request, response) => {
    request.resume();
    const isArchive = request.url === '/v1/compute/download';
    response.writeHead(200, { 'content-type': isArchive ? TAR : 'application/json', connection: 'close' });
    if (isArchive) response.write(content);
    response.end(
      isArchive ? undefined : JSON.stringify({ id: ID, status: 'running', expires_at: 0, type: 'directory' }),
    );
  }).listen(0, '127.0.0.1');
  t.after(() => void server.close());
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const env = { PATH: process.env.PATH, SVC_BROKER_URL: `http://127.0.0.1:${port}`, SVC_BROKER_TOKEN: 'none' };
  const code =
    language === 'js'
      ? `import { wallet } from ${JSON.stringify(join(ROOT, 'sdk/javascript/purser.mjs'))};
const m = await wallet({ patience: 0 }).machine('${ID}');
console.log(await m.fetch('tree', 'fetched').then(() => 'done', (error) => error.code));`
      : `import sys
sys.path.insert(0, ${JSON.stringify(join(ROOT, 'sdk/python'))})
import purser
m = purser.wallet(patience=0).machine('${ID}')
try:
    m.fetch('tree', 'fetched'); print('done')
except purser.PurserError as error:
    print(error.code)`;
  writeFileSync(join(directory, 'secret'), 'canary-4711');
  const args = language === 'js' ? ['--input-type=module', '-e', code] : ['-c', code];
  const { stdout } = await run(program, args, { cwd: directory, env });
  return { told: stdout.trim(), fetched: join(directory, 'fetched') };
}

/** Links that lead out of a tree through others of it, which alone stay in it. */
const LEAVING: Member[] = [
  { name: 'a/b/top', linkName: '../..', type: '2' },
  { name: 'before', linkName: 'a/b/top/../secret', type: '2' },
  { name: 'a/out', linkName: 'b/top/b/../../secret', type: '2' },
  { name: 'a/absolute', linkName: '/etc/passwd', type: '2' },
  { name: 'a/plain', linkName: '../../secret', type: '2' },
  { name: 'a/same', linkName: './in', type: '2' },
  { name: 'in', linkName: 'a/b/top/file', type: '2' },
  { name: 'file', content: 'own' },
];

/** Checks that no link that leads out of a tree is made, and that others are. */
export async function assertLinksStay(t: TestContext, language: Language, program: string) {
  for (const entries of [LEAVING, LEAVING.toReversed()]) {
    const { told, fetched } = await fetchFrom(t, language, program, archive(...entries));
    assert.equal(told, 'done');
    for (const name of ['before', 'a/out', 'a/absolute', 'a/plain'])
      assert.equal(lstatSync(join(fetched, name), { throwIfNoEntry: false }), undefined, name);
    for (const name of ['a/b/top', 'a/same', 'in']) readlinkSync(join(fetched, name));
    assert.ok(existsSync(join(fetched, 'in')));
  }
  const [top] = LEAVING;
  const via = { name: 'a/b/top/via', linkName: '../secret', type: '2' };
  const { fetched } = await fetchFrom(t, language, program, archive(top as Member, via));
  assert.equal(lstatSync(join(fetched, 'via'), { throwIfNoEntry: false }), undefined, 'by a name through a link');
}

/** Checks that an entry whose size leads back to itself ends the fetch: it was unpacked for ever. */
export async function assertSizesForward(t: TestContext, language: Language, program: string) {
  for (const type of ['0', 'Q']) {
    const back = [extended({ size: '-1536' }), member({ name: 'file', type })];
    const { told } = await fetchFrom(t, language, program, archive(...back));
    assert.equal(told, 'connection_lost', type);
  }
}
