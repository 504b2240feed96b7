import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import test from 'node:test';
import { END, member, openLocalLease, TAR } from './trees-shared.ts';

const MEMBERS = 1_000_000;
const PIECE_MEMBERS = 2000;

/** An archive of a million files, a piece at a time, and how many pieces have been taken. */
function manyFiles() {
  const piece = Buffer.concat(Array.from({ length: PIECE_MEMBERS }, (_, i) => member({ name: `d/${i}` })));
  let taken = 0;
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      if (taken === MEMBERS / PIECE_MEMBERS) {
        controller.enqueue(new Uint8Array(END));
        controller.close();
        return;
      }
      taken += 1;
      controller.enqueue(new Uint8Array(piece));
    },
  });
  return { body, taken: () => taken };
}

test('an archive of a million files is unpacked while others are answered', async (t) => {
  const { purser, token, id, sh } = await openLocalLease(t);
  const { token: other } = await purser.openWallet();
  const files = manyFiles();
  const url = `${purser.url}/v1/compute/upload?${new URLSearchParams({ id, path: 'work' })}`;
  let isOver = false;
  const uploading = fetch(url, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': TAR },
    body: files.body,
    duplex: 'half',
  } as RequestInit).finally(() => {
    isOver = true;
  });
  /** The most pieces that were taken between two answers: an answer that waits for the archive would be one of all. */
  let most = 0;
  let answered = 0;
  for (let before = 0; !isOver; answered++) {
    assert.equal((await purser.ask('GET', '/v1/budget', { token: other })).status, 200);
    most = Math.max(most, files.taken() - before);
    before = files.taken();
  }
  const answer = (await (await uploading).json()) as { entries: number };
  assert.equal(answer.entries, MEMBERS, JSON.stringify(answer));
  assert.equal(await sh('ls work/d | wc -l'), `${PIECE_MEMBERS}\n`);
  t.diagnostic(`${answered} answers meanwhile, at most ${most} pieces of a mebibyte between two`);
  assert(most <= 20, `${most} pieces of ${MEMBERS / PIECE_MEMBERS} were taken between two answers`);
});
