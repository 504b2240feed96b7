import assert from 'node:assert/strict';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { Refusal } from '../../src/base/refusal.ts';
import { openDatabase } from '../../src/db/open.ts';
import { createWriter, type WriterEvents } from '../../src/db/writer.ts';
import { createRandom, SEED } from '../helper/random.ts';
import { temporaryDirectory } from '../ledger/books.ts';

/** The clock of each test. It is put in once: of two, the first would be left behind for all tests of this process. */
const clocks = new WeakMap<TestContext, { milliseconds: number }>();
function clockOf(t: TestContext): { milliseconds: number } {
  const time = clocks.get(t) ?? { milliseconds: 0 };
  if (!clocks.has(t)) t.mock.method(performance, 'now', () => time.milliseconds);
  clocks.set(t, time);
  return time;
}

/**
 * A writer on a real file, what it told of, and a second connection that sees only what was committed. The clock by which
 * a batch measures itself stands still, so that what is asked for at once is one batch on any machine.
 */
function openWriter(t: TestContext, events: Partial<WriterEvents> = {}) {
  const time = clockOf(t);
  const file = join(temporaryDirectory(t), 'purser.db');
  const { client, tx } = openDatabase(file, { migrate: true });
  const row = client.prepare(`insert into account
    (id, name, available_cents, reserved_cents, spent_cents, welcome_credit_cents, owed_cents, created_at)
    values (?, ?, 0, 0, 0, 0, 0, 1)`);
  const fatal: unknown[] = [];
  const writer = createWriter(client, tx, { fatal: (error) => fatal.push(error), ...events });
  const other = new Client(file, { readonly: true });
  t.after(() => {
    other.close();
    client.close();
  });
  /** A closure that writes one row and answers its name. */
  const insert =
    (name: string, size = 0) =>
    () => {
      row.run(name, name.padEnd(size, '.'));
      return name;
    };
  const committed = () => other.prepare('select id from account order by id').pluck().all() as string[];
  return { client, writer, time, fatal, insert, committed };
}

const status = (results: PromiseSettledResult<unknown>[]) => results.map((it) => it.status);

test('writes of one turn of the event loop are one commit', async (t) => {
  const { writer, committed, insert } = openWriter(t);
  const names = Array.from({ length: 100 }, (_, i) => String(i).padStart(3, '0'));
  assert.deepEqual(await Promise.all(names.map((name) => writer.write(insert(name)))), names);
  assert.equal(writer.commitCount(), 1);
  assert.deepEqual(committed(), names);
});

test('writes run in the order in which they were asked for', async (t) => {
  const { writer } = openWriter(t);
  const order: number[] = [];
  await Promise.all(
    [1, 2, 3].map((it) =>
      writer.write(() => {
        order.push(it);
      }),
    ),
  );
  assert.deepEqual(order, [1, 2, 3]);
});

test('a lone write is a commit of its own, and the next turn has the next commit', async (t) => {
  const { writer, insert } = openWriter(t);
  await writer.write(insert('one'));
  assert.equal(writer.commitCount(), 1);
  await writer.write(insert('two'));
  assert.equal(writer.commitCount(), 2);
});

test('a write waits for one turn of the event loop only', async (t) => {
  const { writer, committed, insert } = openWriter(t);
  void writer.write(insert('one'));
  await turns(1);
  assert.deepEqual(committed(), ['one']);
});

test('a thousand writes at once are eight commits of at most 128', async (t) => {
  const { writer, committed, insert } = openWriter(t);
  const names = Array.from({ length: 1000 }, (_, i) => `n${i}`);
  await Promise.all(names.map((name) => writer.write(insert(name))));
  assert.equal(writer.commitCount(), 8);
  assert.equal(committed().length, 1000);
});

test('a batch that has taken five milliseconds is committed, and the rest waits for the next', async (t) => {
  const { writer, time, insert } = openWriter(t);
  const slow = Array.from({ length: 10 }, (_, i) =>
    writer.write(() => {
      insert(`n${i}`)();
      time.milliseconds += 2;
    }),
  );
  await Promise.all(slow);
  assert.equal(writer.commitCount(), 4, 'three go into each batch');
});

test('a write inside the answer to another is never lost', async (t) => {
  const { writer, committed, insert } = openWriter(t);
  await Promise.all(
    ['a', 'b', 'c'].map(async (name) => {
      await writer.write(insert(name));
      await writer.write(insert(`${name}${name}`));
    }),
  );
  assert.deepEqual(committed(), ['a', 'aa', 'b', 'bb', 'c', 'cc']);
  assert.equal(writer.commitCount(), 2);
});

test('a closure that refuses undoes only itself, and its neighbours in the batch commit', async (t) => {
  const { writer, committed, insert } = openWriter(t);
  const refusal = new Refusal('insufficient_funds');
  const results = await Promise.allSettled([
    writer.write(insert('before')),
    writer.write((): string => {
      insert('refused')();
      throw refusal;
    }),
    writer.write(insert('after')),
  ]);
  assert.deepEqual(status(results), ['fulfilled', 'rejected', 'fulfilled']);
  assert.equal((results[1] as PromiseRejectedResult).reason, refusal);
  assert.deepEqual(committed(), ['after', 'before']);
  assert.equal(writer.commitCount(), 1);
});

/** Counts how often each of these closures runs. */
function counting() {
  const runs: Record<string, number> = {};
  const counted = (name: string, run: () => unknown) => () => {
    runs[name] = (runs[name] ?? 0) + 1;
    run();
  };
  return { runs, counted };
}
const throwRefusal = () => {
  throw new Refusal('conflict');
};

test('closures run once; only where one throws after it wrote, its batch runs again, and the next once', async (t) => {
  let committing = 0;
  const { writer, committed, insert } = openWriter(t, { committing: () => committing++ });
  const { runs, counted } = counting();
  await Promise.allSettled([
    writer.write(counted('a', insert('a'))),
    writer.write(counted('early', throwRefusal)),
    writer.write(counted('b', insert('b'))),
  ]);
  assert.deepEqual([runs, writer.commitCount(), committing], [{ a: 1, early: 1, b: 1 }, 1, 1]);

  const late = (name: string) => () => {
    insert(name)();
    throwRefusal();
  };
  const results = await Promise.allSettled([
    writer.write(counted('c', insert('c'))),
    writer.write(counted('late', late('late'))),
    writer.write(counted('later', late('later'))),
    writer.write(counted('d', insert('d'))),
  ]);
  assert.deepEqual(status(results), ['fulfilled', 'rejected', 'rejected', 'fulfilled']);
  assert.deepEqual(committed(), ['a', 'b', 'c', 'd']);
  assert.deepEqual([runs.c, runs.late, runs.later, runs.d], [2, 2, 1, 1]);
  assert.deepEqual([writer.commitCount(), committing], [2, 2]);

  await writer.write(counted('e', insert('e')));
  await Promise.allSettled([writer.write(counted('alone', late('alone')))]);
  assert.deepEqual([runs.e, runs.alone], [1, 2]);
  assert.deepEqual([writer.commitCount(), committing], [4, 3], 'what was undone is no write of the batch');
});

test(`any mix of closures leaves what those leave that do not throw, and none runs more than twice (seed ${SEED})`, async (t) => {
  const random = createRandom(SEED);
  const { writer, committed, insert } = openWriter(t);
  const { runs, counted } = counting();
  const kept: string[] = [];
  for (let batch = 0; batch < 40; batch++)
    await Promise.allSettled(
      Array.from({ length: 64 }, (_, i) => {
        const name = `${batch}-${i}`;
        const isKept = random.whole(1, 10) > 1;
        const isWritten = isKept || random.whole(0, 1) === 1;
        if (isKept) kept.push(name);
        return writer.write(
          counted(name, () => {
            if (isWritten) insert(name)();
            if (!isKept) throwRefusal();
          }),
        );
      }),
    );
  assert.deepEqual(committed(), kept.toSorted());
  assert(Math.max(...Object.values(runs)) <= 2);
});

test('a closure that ends the transaction is fatal: nothing after it runs outside of one', async (t) => {
  const { writer, client, fatal, committed, insert } = openWriter(t);
  void writer.write(insert('before'));
  void writer.write(() => {
    client.exec('rollback');
  });
  void writer.write(insert('after'));
  await turns(5);
  assert.equal(fatal.length, 1);
  assert.deepEqual(committed(), []);
});

test('a constraint that fails undoes only its own closure, with everything that it wrote before', async (t) => {
  const { writer, committed, insert } = openWriter(t);
  const results = await Promise.allSettled([
    writer.write(insert('one')),
    writer.write(() => {
      insert('two')();
      insert('one')();
    }),
    writer.write(insert('three')),
  ]);
  assert.deepEqual(status(results), ['fulfilled', 'rejected', 'fulfilled']);
  assert.match((results[1] as PromiseRejectedResult).reason.code, /^SQLITE_CONSTRAINT/);
  assert.deepEqual(committed(), ['one', 'three']);
});

test('a trigger that aborts undoes only its own closure', async (t) => {
  const { writer, client, committed, insert } = openWriter(t);
  client.exec(`create trigger no before insert on account when new.id = 'no' begin select raise(abort, 'no'); end`);
  const results = await Promise.allSettled(['one', 'no', 'two'].map((name) => writer.write(insert(name))));
  assert.deepEqual(status(results), ['fulfilled', 'rejected', 'fulfilled']);
  assert.deepEqual(committed(), ['one', 'two']);
});

test('a closure that catches the failure of its own statement keeps the rest', async (t) => {
  const { writer, committed, insert } = openWriter(t);
  await writer.write(() => {
    insert('one')();
    assert.throws(() => insert('one')());
    insert('two')();
  });
  assert.deepEqual(committed(), ['one', 'two']);
});

test('an asynchronous closure does not compile, and is refused at run time where the compiler was silenced', async (t) => {
  const { writer, committed, insert } = openWriter(t);
  // @ts-expect-error A write is a synchronous closure.
  const direct = writer.write(async () => 1);
  // @ts-expect-error Nor one that answers a promise only sometimes.
  const sometimes = writer.write(() => (committed().length ? 1 : Promise.resolve(1)));
  const cast = writer.write((async () => insert('early')()) as unknown as () => number);
  const results = await Promise.allSettled([direct, sometimes, cast, writer.write(insert('plain'))]);
  assert.deepEqual(status(results), ['rejected', 'rejected', 'rejected', 'fulfilled']);
  for (const it of results.slice(0, 3)) assert((it as PromiseRejectedResult).reason instanceof TypeError);
  assert.deepEqual(committed(), ['plain']);
});

test('a write that resolves can be seen by another connection, and not before', async (t) => {
  const seen: number[] = [];
  const { writer, committed, insert } = openWriter(t, { committed: () => seen.push(committed().length) });
  const one = writer.write(insert('one')).then(committed);
  const two = writer.write(() => {
    insert('two')();
    return committed();
  });
  assert.deepEqual(await one, ['one', 'two']);
  assert.deepEqual(await two, [], 'inside the batch nothing is committed yet');
  assert.deepEqual(seen, [2], 'told of after the commit');
});

test('promises settle after the event of the commit', async (t) => {
  const order: string[] = [];
  const { writer, insert } = openWriter(t, { committed: () => order.push('committed') });
  await writer.write(insert('one')).then(() => order.push('resolved'));
  await writer
    .write(() => {
      throw new Refusal('conflict');
    })
    .catch(() => order.push('rejected'));
  assert.deepEqual(order, ['committed', 'resolved', 'committed', 'rejected']);
});

/** Lets the file grow by no page more; returns what gives the space back. */
function fillDisk(client: Client.Database): () => void {
  client.pragma(`max_page_count = ${client.pragma('page_count', { simple: true })}`);
  return () => client.pragma('max_page_count = 1073741823');
}
const BIG = 1_000_000;

test('a full disk refuses with read_only and a time to retry, changes nothing, and is over when there is space', async (t) => {
  const { writer, client, fatal, committed, insert } = openWriter(t);
  await writer.write(insert('one'));
  const free = fillDisk(client);
  await assert.rejects(writer.write(insert('full', BIG)), (error) => {
    assert(error instanceof Refusal && error.code === 'read_only' && error.retryAfterSeconds !== undefined);
    assert.match(error.message, /SQLITE_FULL/);
    return true;
  });
  assert.deepEqual(committed(), ['one'], 'and it can be read');
  free();
  await writer.write(insert('two'));
  assert.deepEqual(committed(), ['one', 'two']);
  assert.deepEqual(fatal, []);
});

test('a full disk that undoes one statement only is the same refusal to whoever asked', async (t) => {
  const { writer, client, committed, insert } = openWriter(t);
  // With a trigger that can abort, SQLite keeps a statement journal: then the transaction outlives a full disk.
  client.exec(`create trigger no before insert on account when new.id = '' begin select raise(abort, 'no'); end`);
  const free = fillDisk(client);
  const results = await Promise.allSettled([writer.write(insert('small')), writer.write(insert('full', BIG))]);
  assert.deepEqual(status(results), ['fulfilled', 'rejected']);
  const { reason } = results[1] as PromiseRejectedResult;
  assert(reason instanceof Refusal && reason.code === 'read_only', String(reason));
  free();
  await writer.write(insert('later'));
  assert.deepEqual(committed(), ['later', 'small']);
});

test('everybody who waits behind a full disk is refused, and nobody waits for ever', async (t) => {
  const { writer, client, committed, insert } = openWriter(t);
  const free = fillDisk(client);
  const results = await Promise.allSettled(['a', 'b', 'c'].map((name) => writer.write(insert(name, BIG))));
  assert.deepEqual(status(results), ['rejected', 'rejected', 'rejected']);
  for (const it of results) assert.equal((it as PromiseRejectedResult).reason.code, 'read_only');
  free();
  assert.deepEqual(committed(), []);
  await writer.close();
});

test('one that is too large for a full disk does not take with it what still fits', async (t) => {
  const { writer, client, committed, insert } = openWriter(t);
  const free = fillDisk(client);
  const asked = [writer.write(insert('a')), writer.write(insert('large', BIG)), writer.write(insert('b'))];
  assert.deepEqual(status(await Promise.allSettled(asked)), ['fulfilled', 'rejected', 'fulfilled']);
  assert.deepEqual(committed(), ['a', 'b']);
  free();
  await Promise.all([writer.write(insert('c')), writer.write(insert('large', BIG))]);
  assert.deepEqual(committed(), ['a', 'b', 'c', 'large']);
});

test('where room can be made, a full disk is not told of: the batch runs again, and each of it counts once', async (t) => {
  for (const withTrigger of [false, true]) {
    let made = 0;
    let free = () => {};
    const makeRoom = () => {
      made++;
      free();
      return true;
    };
    const { writer, client, committed, insert } = openWriter(t, { releaseReserve: makeRoom });
    if (withTrigger)
      client.exec(`create trigger no before insert on account when new.id = '' begin select raise(abort, 'no'); end`);
    const restore = fillDisk(client);
    free = () => void restore();
    const asked = [
      writer.write(insert('a')),
      writer.write(() => {
        throw new Refusal('conflict');
      }),
      writer.write(insert('large', BIG)),
    ];
    assert.deepEqual(status(await Promise.allSettled(asked)), ['fulfilled', 'rejected', 'fulfilled']);
    assert.deepEqual(committed(), ['a', 'large']);
    assert.deepEqual([made, writer.failure(), writer.commitCount()], [1, undefined, 1]);
  }
});

test('that nothing can be written is known until something can, however SQLite undid it', async (t) => {
  for (const withTrigger of [false, true]) {
    const { writer, client, insert } = openWriter(t);
    if (withTrigger)
      client.exec(`create trigger no before insert on account when new.id = '' begin select raise(abort, 'no'); end`);
    await writer.write(insert('one'));
    assert.equal(writer.failure(), undefined);
    const free = fillDisk(client);
    await assert.rejects(writer.write(insert('full', BIG)), { code: 'read_only' });
    assert.match(writer.failure() ?? '', /SQLITE_FULL/);
    free();
    await writer.write(insert('two'));
    assert.equal(writer.failure(), undefined);
  }
});

/** A closure whose damage shows only at COMMIT: a reference that is checked there and leads nowhere. */
const failAtCommit = (client: Client.Database) => () => {
  client.pragma('defer_foreign_keys = ON');
  client.exec(
    `insert into funding (id, account_id, kind, amount_cents, created_at, seal) values ('evt_1', 'acct_x', 'credit', 1, 1, 0)`,
  );
};

test('a commit that fails is fatal: it is told, nothing is answered, and nothing is written afterwards', async (t) => {
  const { writer, client, fatal, committed, insert } = openWriter(t);
  const answered: string[] = [];
  const answer = (name: string) => [() => answered.push(name), () => answered.push(name)] as const;
  void writer.write(insert('innocent')).then(...answer('innocent'));
  void writer.write(failAtCommit(client)).then(...answer('doomed'));
  await turns(5);
  assert.equal(fatal.length, 1);
  assert.match((fatal[0] as { code: string }).code, /^SQLITE_CONSTRAINT/);
  assert.deepEqual(answered, [], 'recovery and the idempotency keys decide');
  await assert.rejects(writer.write(insert('later')), /closed/);
  await writer.close();
  assert.deepEqual(committed(), []);
  assert.equal(writer.commitCount(), 0);
});

for (const code of ['SQLITE_IOERR_FSYNC', 'SQLITE_IOERR_WRITE', 'SQLITE_READONLY', 'SQLITE_CORRUPT', 'SQLITE_NOTADB'])
  test(`${code} in the middle of a batch is everybody's unknown outcome`, async (t) => {
    const { writer, fatal, committed, insert } = openWriter(t);
    const answered: string[] = [];
    const note = () => answered.push('answered');
    void writer.write(insert('innocent')).then(note, note);
    void writer
      .write(() => {
        throw new Client.SqliteError('the disk lies', code);
      })
      .then(note, note);
    void writer.write(insert('behind')).then(note, note);
    await turns(5);
    assert.deepEqual(
      fatal.map((it) => (it as { code: string }).code),
      [code],
    );
    assert.deepEqual(answered, []);
    assert.deepEqual(committed(), []);
  });

test('closing waits until all that was asked for is on disk', async (t) => {
  const { writer, committed, insert } = openWriter(t);
  const names = Array.from({ length: 300 }, (_, i) => String(i).padStart(3, '0'));
  const results = Promise.all(names.map((name) => writer.write(insert(name))));
  await writer.close();
  assert.deepEqual(committed(), names);
  assert.equal((await results).length, 300);
  await assert.rejects(writer.write(insert('late')), /closed/);
});

test('closing an idle writer, and closing it twice, is over at once', async (t) => {
  const { writer } = openWriter(t);
  await writer.close();
  await writer.close();
});

test('the connection is durable: WAL, synchronous=FULL after the first statement, and references are checked', async (t) => {
  const { client, writer, insert } = openWriter(t);
  await writer.write(insert('one'));
  const pragma = (name: string) => client.pragma(name, { simple: true });
  assert.equal(pragma('journal_mode'), 'wal');
  assert.equal(pragma('synchronous'), 2n);
  assert.equal(pragma('foreign_keys'), 1n);
  assert.equal(pragma('trusted_schema'), 0n);
});

test('whole numbers beyond 2^53 come back as they went in', async (t) => {
  const { client } = openWriter(t);
  assert.equal(client.prepare('select 9007199254740993').pluck().get(), 9007199254740993n);
});

/** A few turns of the event loop: more than a flush needs. */
async function turns(count: number): Promise<void> {
  for (let i = 0; i < count; i++) await new Promise((resolve) => setImmediate(resolve));
}

test('the clock of the process is the real one again', async () => {
  const before = performance.now();
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.notEqual(performance.now(), before);
});
