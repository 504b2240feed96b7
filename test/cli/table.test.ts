import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test, { type TestContext } from 'node:test';
import { lines, table } from '../../cli/table.ts';
import { paint, widthOf } from '../../cli/terminal.ts';

const NOW = 1_795_000_000;
const at = (t: TestContext) => t.mock.timers.enable({ apis: ['Date'], now: NOW * 1000 });
/** What a pipe gets: text without tones. */
const plainly = (text: string) => paint(text, new PassThrough() as unknown as NodeJS.WriteStream);

const ROWS = [
  {
    id: 'wal_01k9abcdefgh0123456789abcd',
    name: 'agent-7',
    status: 'active',
    budget_usd: '5.00',
    used_usd: '0.000125',
    reserved_cents: 1250,
    frozen_at: null,
    expires_at: NOW + 7200,
    reason: null,
  },
  {
    id: 'wal_01k9abcdefgj0123456789abcd',
    name: 'a name that is long and goes on',
    status: 'closed',
    budget_usd: '1000.00',
    used_usd: '12.5',
    reserved_cents: 0,
    frozen_at: null,
    expires_at: NOW - 200,
    reason: 'it looped, and nobody looked at it for a week',
  },
];
const NAMES = Object.keys(ROWS[0] as object);

test('amounts are in USD, right-aligned with the same decimals; times are relative', (t) => {
  at(t);
  assert.equal(
    plainly(table(ROWS, NAMES, undefined)),
    [
      'ID                              NAME                             STATUS  BUDGET USD   USED USD  RESERVED USD  FROZEN AT  EXPIRES AT  REASON',
      'wal_01k9abcdefgh0123456789abcd  agent-7                          active        5.00   0.000125         12.50  -          in 2 h      -',
      'wal_01k9abcdefgj0123456789abcd  a name that is long and goes on  closed     1000.00  12.500000          0.00  -          3 min ago   it looped, and nobody looked at it for a week',
    ].join('\n'),
  );
  assert.equal(table([], NAMES), '(none)');
});

test('a narrow terminal gets short ids, broken headings and cut texts, and no empty column', (t) => {
  at(t);
  assert.equal(
    plainly(table(ROWS, NAMES, 90)),
    [
      '                                       BUDGET       USED  RESERVED  EXPIRES',
      'ID                NAME        STATUS      USD        USD       USD  AT         REASON',
      'wal_01k9abcdefgh  agent-7     active     5.00   0.000125     12.50  in 2 h     -',
      'wal_01k9abcdefgj  a name th…  closed  1000.00  12.500000      0.00  3 min ago  it looped,…',
    ].join('\n'),
  );
});

test('every table fits every width', (t) => {
  at(t);
  for (let width = 50; width < 200; width++)
    for (const line of plainly(table(ROWS, NAMES, width)).split('\n'))
      assert.ok(widthOf(line) <= width, `${width}: ${line}`);
});

test('a record is told in the units of people, and the same amount once', (t) => {
  at(t);
  assert.equal(
    plainly(
      lines(
        {
          id: 'wal_1',
          status: 'active',
          budget_cents: 500,
          budget_usd: '5.00',
          returned_cents: null,
          created_at: NOW - 90,
          price: { prompt_nanos_per_million: '10000000000', request_nanos: '100000' },
          note: 'one\ntwo \u001b[31mred',
        },
        undefined,
      ),
    ),
    [
      'id                            wal_1',
      'status                        active',
      'budget_usd                    5.00',
      'returned_usd                  -',
      'created_at                    2026-11-18 11:05:10Z (1 min ago)',
      'price.prompt_usd_per_million  10.00',
      'price.request_usd             0.0001',
      'note                          one\\ntwo \\u001b[31mred',
    ].join('\n'),
  );
});

test('outside text gets no tone, and wide characters count double', () => {
  const row = { name: '\ufdd02red\ufdd1', status: '模型', n: 1 };
  assert.equal(plainly(table([row], ['name', 'status', 'n'])), 'NAME  STATUS  N\n2red  模型    1');
});
