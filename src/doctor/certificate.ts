import { warning } from '../compute/finding.ts';
import type { Config } from '../config/config.ts';
import { type Certificate, datesFault } from '../net/certificate.ts';
import { reachableHost } from '../net/listen.ts';

const DAY_SECONDS = 86_400;
/** Days before the end at which a renewal is late, or a fifth of the certificate's life where that is less. */
const LATE_DAYS = 14;
const LATE_SHARE = 1 / 5;

/** Judges the certificate of the setting `tls`, at a time in Unix seconds. Throws where clients refuse it. */
export function judgeCertificate(
  certificate: Certificate,
  { listen, public_url: publicUrl }: Pick<Config, 'listen' | 'public_url'>,
  now: number,
): string {
  const { validFrom, validTo } = certificate;
  const renew = 'Renew it: a running server serves changed files within a minute.';
  const fault = datesFault(certificate, now);
  if (fault) throw new Error(`${fault} Clients refuse it. ${renew}`);
  const days = Math.floor((validTo - now) / DAY_SECONDS);
  const expires = `it expires on ${new Date(validTo * 1000).toISOString().slice(0, 10)}, in ${days} ${days === 1 ? 'day' : 'days'}`;
  const host = publicUrl === undefined ? reachableHost(listen.host) : new URL(publicUrl).hostname;
  if (!certificate.isFor(host.replace(/^\[|\]$/g, '')))
    return warning(
      `${expires}. It is not for ${host}, where agents call: those that connect to Purser itself refuse it.`,
    );
  if (validTo - now < Math.min(LATE_DAYS * DAY_SECONDS, (validTo - validFrom) * LATE_SHARE))
    return warning(`${expires}. ${renew}`);
  return expires;
}
