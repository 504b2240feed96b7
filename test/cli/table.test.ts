import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test, { type TestContext } from 'node:test';
import { lines, table } from '../../cli/table.ts';
import { paint, piecesOf, widthOf } from '../../cli/terminal.ts';

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
      '                                         BUDGET   USED  RESERVED  EXPIRES',
      'ID                NAME          STATUS      USD    USD       USD  AT         REASON',
      'wal_01k9abcdefgh  agent-7       active     5.00  <0.01     12.50  in 2 h     -',
      'wal_01k9abcdefgj  a name that…  closed  1000.00  12.50      0.00  3 min ago  it looped, a…',
    ].join('\n'),
  );
});

/** A record for each of `count` wallets, as the server lists them. */
const wallets = (count: number) =>
  Array.from({ length: count }, (_, i) => ({
    id: `wal_01k9abcdefgh${String(i).padStart(16, '0')}`,
    name: `研究ー${i} a name that is long`,
    status: 'active',
    budget_usd: '1234567.00',
    used_usd: '123.123456789',
    held_usd: '0.00',
    delegated_usd: i % 2 ? '0.00' : '1.5',
    available_usd: '1234443.876543211',
    expires_at: NOW + 7200,
  }));
const WALLET_COLUMNS = [
  'id',
  'name',
  'status',
  'budget_usd',
  'used_usd',
  'held_usd?',
  'delegated_usd?',
  'available_usd?',
];

test('every table fits every width, with one line for each record', (t) => {
  at(t);
  const all = wallets(40);
  for (let width = 40; width < 200; width++)
    for (const [rows, names] of [
      [ROWS, NAMES],
      [all, [...WALLET_COLUMNS, 'expires_at']],
    ] as const) {
      const shown = plainly(table(rows, names, width)).split('\n');
      for (const line of shown) assert.ok(widthOf(line) <= width, `${width}: ${line}`);
      assert.ok(shown.length <= rows.length + 2 + 4, `${width}: ${shown.length} lines`);
    }
});

test('what is zero goes first, then what is secondary, and the table says what it lacks', (t) => {
  at(t);
  const narrow = plainly(table(wallets(3), [...WALLET_COLUMNS, 'expires_at'], 80)).split('\n');
  assert.doesNotMatch(narrow.join('\n'), /HELD|held/);
  assert.match(narrow.at(-1) as string, /^Not shown: (delegated usd, )?available usd.* \(-o wide\)$/);
  const wide = plainly(table(wallets(3), [...WALLET_COLUMNS, 'expires_at'], 80, { wide: true }));
  assert.match(wide, /HELD USD .*AVAILABLE USD/);
  assert.match(wide, /1234443\.876543211/);
  const chosen = plainly(table(wallets(2), WALLET_COLUMNS, 20, { columns: ['name', 'available_usd'] }));
  assert.match(chosen, /^NAME +AVAILABLE USD\n研究ー0 a name that is long +1234443\.876543211\n/);
  assert.throws(() => table(wallets(1), WALLET_COLUMNS, 80, { columns: ['nam'] }), {
    code: 'invalid_request',
    message: /^There is no column "nam"\. There are: id, name, status, .*expires_at\.$/,
  });
});

test('the work for a table grows as its records do', (t) => {
  at(t);
  const measured = (count: number) => {
    const looks = t.mock.method(String.prototype, 'codePointAt');
    table(wallets(count), WALLET_COLUMNS, 80);
    const calls = looks.mock.callCount();
    looks.mock.restore();
    return calls / count;
  };
  const [few, many] = [measured(100), measured(1000)];
  assert.ok(few > 1 && many < few * 1.5, `${few} and ${many} characters measured for each record`);
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
          refill: { cents: 500, every: 'day', carry: 200 },
          ended: { cents: 500, carry: 'all' },
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
      'refill.usd                    5.00',
      'refill.every                  day',
      'refill.carry                  2.00',
      'ended.usd                     5.00',
      'ended.carry                   all',
      'note                          one\\ntwo \\u001b[31mred',
    ].join('\n'),
  );
});

test('outside text gets no tone, and wide characters count double', () => {
  const row = { name: '\ufdd02red\ufdd1', status: '模型', n: 1 };
  assert.equal(plainly(table([row], ['name', 'status', 'n'])), 'NAME  STATUS  N\n2red  模型    1');
  assert.equal(widthOf('モデルー'), 8, 'U+30FC is as wide as the letters before it');
  assert.equal(widthOf('ﾓﾃﾞﾙｰ'), 5);
});

test('a sentence is broken at the width of the terminal, as a terminal counts, and loses nothing', () => {
  const text = `研究ー${'x'.repeat(30)}ー研究`;
  const pieces = piecesOf(text, 9);
  assert.equal(pieces.join(''), text);
  assert.ok(pieces.every((it) => widthOf(it) <= 9));
  assert.equal(pieces[0], '研究ーxxx');
  assert.deepEqual(piecesOf('', 9), ['']);
});
