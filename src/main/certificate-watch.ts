import {
  type Certificate,
  CertificateFault,
  type CertificateFiles,
  datesFault,
  readCertificate,
} from '../net/certificate.ts';
import type { Events } from '../telemetry/events.ts';

/** Interval at which the files are read again: a program that renews them may write one after the other. */
const INTERVAL_MILLISECONDS = 15_000;

export type CertificateWatch = {
  start(): void;
  stop(): void;
  /** Reads the files now, and serves what has changed. */
  runOnce(): void;
  /** Throws CertificateFault if a certificate must not replace the one that is served. */
  check(next: Certificate): void;
  /** Serves a certificate from now on, and watches these files. Returns false if it is the one that is served. */
  use(next: Certificate, files: CertificateFiles): boolean;
};

/**
 * Serves the certificate in `files` as it changes: programs that renew certificates replace files or symbolic links, without a
 * signal. An unusable certificate is reported, and the earlier one stays. `now` returns Unix seconds.
 */
export function watchCertificate(
  files: CertificateFiles,
  served: Certificate,
  serve: (certificate: Certificate) => void,
  now: () => number,
  events: Pick<Events, 'certificateChanged' | 'certificateRefused' | 'certificateInvalid' | 'gauge'>,
): CertificateWatch {
  let timer: NodeJS.Timeout | undefined;
  let refusedFor: string | undefined;
  events.gauge('tls_expires_seconds', 'When the certificate that is served expires.', () => served.validTo);
  const invalid = datesFault(served, now());
  if (invalid) events.certificateInvalid(invalid);

  const watch: CertificateWatch = {
    start() {
      timer = setInterval(watch.runOnce, INTERVAL_MILLISECONDS).unref();
    },
    stop: () => clearInterval(timer),
    runOnce() {
      try {
        const next = readCertificate(files);
        watch.check(next);
        watch.use(next, files);
      } catch (error) {
        const { message } = error as Error;
        events.certificateRefused(error, message !== refusedFor);
        refusedFor = message;
      }
    },
    check(next) {
      const fault = datesFault(next, now());
      // If neither is good, the files may be older than the certificate that is served, or the clock is wrong.
      if (fault && !next.isSame(served) && !datesFault(served, now())) throw new CertificateFault(`tls.cert: ${fault}`);
    },
    use(next, nextFiles) {
      files = nextFiles;
      refusedFor = undefined;
      if (next.isSame(served)) return false;
      serve(next);
      served = next;
      events.certificateChanged(next.validTo);
      return true;
    },
  };
  return watch;
}
