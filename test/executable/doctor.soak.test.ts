import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { books } from './doctor-shared.ts';

test('old programs on the PATH that may destroy the database are named', async (t) => {
  const tools = mkdtempSync(join(tmpdir(), 'purser-tools-'));
  t.after(() => rmSync(tools, { recursive: true, force: true }));
  const { is, by } = await books(t);
  const program = (name: string, text: string) =>
    writeFileSync(join(tools, name), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
  const there = by({ env: { PATH: tools } });
  await is('tools', true, /^no sqlite3 and no litestream on the PATH$/, there);
  for (const old of ['3.7.0', '3.40.1', '3.44.5', '3.50.6', '3.51.2']) {
    program('sqlite3', `echo "${old} 2022-12-28 14:03:47 df5c253c0b3dd24916e4ec7cf77d3db5294cc9fd"`);
    await is('tools', true, RegExp(`^Warning: ${tools}/sqlite3 is ${old}: .*copy made by .purser backup`), there);
  }
  for (const fixed of ['3.44.6', '3.50.7', '3.51.3', '3.54.1']) {
    program('sqlite3', `echo "${fixed} 2026-03-13"`);
    await is('tools', true, RegExp(`^${tools}/sqlite3 is ${fixed}$`), there);
  }
  program('litestream', 'echo v0.5.16');
  await is('tools', true, /^Warning: .*litestream is 0\.5\.16: /, there);
  program('litestream', 'echo v0.5.17');
  await is('tools', true, /litestream is 0\.5\.17$/, there);
  program('sqlite3', 'exec /bin/sleep 60');
  await is('tools', true, /^Warning: .*sqlite3 is of an unknown version/, there);
});

test('a server that was stopped in the middle does not stop doctor', async (t) => {
  const { is, purser } = await books(t);
  const server = await purser.serve();
  server.kill('SIGSTOP');
  await is('server', false, /does not answer.*kill -CONT.* end it \(kill -9\) and start it again/);
  server.kill('SIGCONT');
  await is('server', true, /^running/);
});

test('a data directory that everybody could put another in the place of is found', async (t) => {
  const above = mkdtempSync(join(tmpdir(), 'purser-above-'));
  t.after(() => rmSync(above, { recursive: true, force: true }));
  mkdirSync(join(above, 'data'), { mode: 0o700 });
  const { is } = await books(t, { directory: join(above, 'data') });
  chmodSync(above, 0o777);
  await is('data directory', false, /can be written by everybody.* Run: chmod o-w /);
  chmodSync(above, 0o1777);
  await is('data directory', true, /data$/);
});

test('settings that everybody could put others in the place of are found, behind a link too', async (t) => {
  const above = mkdtempSync(join(tmpdir(), 'purser-above-'));
  t.after(() => rmSync(above, { recursive: true, force: true }));
  const { is, at, by } = await books(t, { settings: null });
  writeFileSync(join(above, 'it.yaml'), 'listen: 127.0.0.1:0\n', { mode: 0o600 });
  symlinkSync(join(above, 'it.yaml'), at('link.yaml'));
  for (const file of [join(above, 'it.yaml'), at('link.yaml')]) {
    const purser = by({ settings: null, env: { PURSER_CONFIG: file } });
    await is('secrets', true, /master\.key: closed/, purser);
    chmodSync(above, 0o777);
    await is('secrets', false, /can be written by everybody.* Run: chmod o-w \S+purser-above/, purser);
    chmodSync(above, 0o1777);
    await is('secrets', true, /master\.key: closed/, purser);
    chmodSync(above, 0o700);
  }
});

test('settings with a secret in them are closed to others; with a reference to one they need not be', async (t) => {
  const purser = (key: string) => ({ name: 'local', base_url: 'http://127.0.0.1:9/v1', api_key: key });
  const settings = (key: string) => ({ router: { upstreams: [purser(key)], models: [] } });
  const file = 'purser.yaml';
  const options = { env: { HOUSE_SECRET: 'canary-0123456789' } };
  const inline = await books(t, { ...options, settings: settings('canary-0123456789') });
  chmodSync(inline.at(file), 0o644);
  await inline.is('secrets', false, /purser\.yaml holds a secret .*mode 644/);
  chmodSync(inline.at(file), 0o600);
  await inline.is('secrets', true, /purser\.yaml: closed/);

  const referred = await books(t, { ...options, settings: settings(`\${HOUSE_SECRET}`) });
  chmodSync(referred.at(file), 0o644);
  await referred.is('secrets', true, /master\.key: closed/);
  chmodSync(referred.at(file), 0o666);
  await referred.is('secrets', false, /purser\.yaml can be changed by others.* Run: chmod go-w/);
});
