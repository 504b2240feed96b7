import type { Change } from '../../config/change.ts';
import type { BooksMove } from '../../ledger/notices.ts';
import type { Verification } from '../../ledger/verify.ts';
import type { Sinks } from '../sinks.ts';

/** The events of the server and the installation as a whole. */
export const serverEvents = ({ log, metrics }: Sinks) => ({
  booksMoved({ from, host, writtenAt }: BooksMove, missing: readonly string[]) {
    const lost = missing.length ? `; missing here: ${missing.join(', ')}` : '';
    log.warn(
      { event: 'books.moved', from, host, last_written_at: writtenAt, missing },
      `these books were served by ${from ?? 'another machine'} before, and were last written at ${new Date(writtenAt * 1000).toISOString()}${lost}`,
    );
  },
  frozen(sentence: string) {
    log.warn({ event: 'frozen', reason: sentence }, 'new holds are refused');
  },
  refused(code: string, requestId: string, message: string, path: string) {
    metrics.refusals.inc({ code });
    log.debug({ event: 'request.refused', code, request_id: requestId, path, message }, 'refused');
  },
  cutOff(reason: 'no_room' | 'pipelined' | 'stalled' | 'handshake') {
    metrics.cutOff.inc({ reason });
    log.debug({ event: 'connection.cut_off', reason }, 'a connection was closed');
  },
  reloaded(change: Change) {
    metrics.reloads.inc({ outcome: 'done' });
    log.info({ event: 'reloaded', ...change }, 'the settings were read again');
  },
  certificateChanged(validTo: number) {
    const until = new Date(validTo * 1000).toISOString();
    log.info({ event: 'tls.changed', valid_to: until }, 'another certificate is served from now on');
  },
  /** Counts every failure, and logs the first. */
  certificateRefused(error: unknown, isNews: boolean) {
    metrics.failures.inc({ where: 'tls' });
    if (!isNews) return;
    const reason = (error as Error).message;
    log.error(
      { event: 'tls.refused', reason },
      'the files of the certificate cannot be served; the one of before is, and they are read again',
    );
  },
  certificateInvalid(sentence: string) {
    log.error({ event: 'tls.invalid', reason: sentence }, 'clients will refuse the certificate');
  },
  reloadRefused(error: unknown) {
    metrics.reloads.inc({ outcome: 'refused' });
    log.error(
      { event: 'reload.refused', reason: (error as Error).message },
      'the settings were not changed; the server goes on with those of before',
    );
  },
  backupMade(file: string, removed: readonly string[]) {
    log.info({ event: 'backup.made', file, removed }, 'backup made');
  },
  /** Counts every failure, and logs the first. */
  backupFailed(error: unknown, isNews: boolean) {
    metrics.failures.inc({ where: 'backup' });
    if (!isNews) return;
    const reason = (error as Error).message;
    log.error({ event: 'backup.failed', reason }, 'no backup was made; it is retried, and logged when it succeeds');
  },
  rotated(previous: string, next: string, from: string) {
    log.warn({ event: 'master_key.rotated', previous, next, from }, 'the master key was rotated');
  },
  booksExamined({ ok, entries, faults }: Verification, milliseconds: number) {
    const facts = { event: 'books.examined', ok, entries, problems: faults, milliseconds };
    log.info(facts, 'the books were examined');
  },
});
