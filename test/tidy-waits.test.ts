import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';

/**
 * No test asserts the duration of something, and no wait has a limit of its own: a machine may be as busy as it likes. These
 * are the places that look like exceptions, each file with their number and the reason. A new one fails here until it waits
 * for an event (test/helper/waiting.ts), or is added with a reason.
 */
const PATTERNS = [
  /(?:performance|Date)\.now\(\)[^;\n]*<[^=\n]|<=? *\(?(?:performance|Date)\.now\(\)/g, // An upper bound of time.
  /\b(?:took|elapsed|late) *<=? *[\w(]/g,
  /\bmilliseconds *<=? *\d/g,
  /AbortSignal\.timeout\(/g,
  /\btimeout: *(?:\d[\d_]{3,}|\w*_MILLISECONDS)/g,
  /setTimeout\([^;]*reject/g,
  /setTimeout\((?:[^;]*, *)?\d/g,
  /\b\w*timeout_seconds: *(?:[1-9]|[12]\d|LIMIT_SECONDS)\b/g,
];

const SPAN = 'a span that has to pass at least, or in which nothing may happen: a busy machine only makes it longer';
const RACE = 'a moment at random or late on purpose: every order is right';
const ITS_LIMIT = 'the limit is what is tested: the other side hangs, and any answer in time would be a failure';
const TIGHT = 'the limit is what is tested, on the real clock, and what comes before it has seconds';
const SETTINGS = 'settings that are read, not lived';

const KNOWN: Record<string, [count: number, why: string]> = {
  'test/chat/funds-wait-walk.test.ts': [1, RACE],
  'test/chat/stream-faults.test.ts': [7, TIGHT],
  'test/chat/stream-memory.test.ts': [1, SPAN],
  'test/chat/stream-replay.test.ts': [1, SPAN],
  'test/chat/upstream-faults.test.ts': [1, ITS_LIMIT],
  'test/compute/container-removed.test.ts': [2, RACE],
  'test/compute/exec-output.test.ts': [1, SPAN],
  'test/compute/kubernetes.engine.test.ts': [1, SPAN],
  'test/compute/lease-inside.engine.test.ts': [1, SPAN],
  'test/compute/lxd.engine.test.ts': [1, SPAN],
  'test/compute/no-descriptor.engine.test.ts': [1, SPAN],
  'test/config/faults.test.ts': [2, SETTINGS],
  'test/config/secrets.test.ts': [4, SETTINGS],
  'test/db/disk-reserve.engine.test.ts': [
    3,
    'a look at the disk is believed for a moment; what is measured is measured around it',
  ],
  'test/db/lock.test.ts': [1, RACE],
  'test/db/writer.test.ts': [1, SPAN],
  'test/executable/checkout.test.ts': [2, RACE],
  'test/executable/clients-page-shared.ts': [1, 'clients of others need some patience: three minutes'],
  'test/executable/drain.soak.test.ts': [1, SPAN],
  'test/executable/streams.soak.test.ts': [1, SPAN],
  'test/helper/waiting.ts': [1, 'what failed after its deadline is done again with a later one'],
  'test/http/order.test.ts': [1, 'the time of a command, which is refused'],
  'test/helper/stuck.ts': [1, 'the limit of a whole file, as seen by the process that runs it'],
  'test/net/watched-pool.test.ts': [2, SPAN],
  'test/notify/deliver.test.ts': [2, ITS_LIMIT],
  'test/reaper/reaper.test.ts': [1, SPAN],
  'test/router/connect.test.ts': [7, ITS_LIMIT],
  'test/router/circuit-tenants.test.ts': [2, ITS_LIMIT],
  'test/router/hostile-upstream.test.ts': [
    3,
    'far more than any answer of the attack takes; what hangs on purpose is ended by it',
  ],
  'test/router/outcomes.test.ts': [1, RACE],
  'test/router/upstreams.test.ts': [2, TIGHT],
  'test/ssh/entrance.engine.test.ts': [1, RACE],
  'test/ssh/sftp.test.ts': [1, SPAN],
  'test/tracing/tracing.test.ts': [2, ITS_LIMIT],
  'test/ui/issuer.test.ts': [1, RACE],
  'test/ui/looks.soak.test.ts': [1, 'a picture is taken all the same'],
  'test/ui/ports.engine.test.ts': [2, SPAN],
};

test('no test asserts how long something takes, and no wait has a limit of its own', () => {
  const root = join(import.meta.dirname, '..');
  const found = readdirSync(import.meta.dirname, { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.(ts|mjs)$/.test(name) && !name.includes('node_modules') && name !== 'tidy-waits.test.ts')
    .map((name) => join('test', name))
    .flatMap((name) => {
      const source = readFileSync(join(root, name), 'utf8');
      const code = source.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$/gm, '');
      const places = PATTERNS.flatMap((it) => code.match(it) ?? []);
      return places.length ? [[name, places] as const] : [];
    });
  const faults = found
    .filter(([name, places]) => places.length !== KNOWN[name]?.[0])
    .map(([name, places]) => `${name}: ${places.length} places: ${places.join(' · ')}`);
  const names = new Set(found.map(([name]) => name));
  const gone = Object.keys(KNOWN).filter((name) => !names.has(name));
  assert.deepEqual([faults, gone], [[], []]);
});
