import { type Certificate, CertificateFault, readCertificate } from '../net/certificate.ts';
import type { Config } from './config.ts';
import { ConfigurationFault } from './fault.ts';

/** Returns the certificate of the setting `tls`, read from its files; undefined without it. Throws ConfigurationFault. */
export function certificateOf({ tls }: Pick<Config, 'tls'>): Certificate | undefined {
  try {
    return tls && readCertificate(tls);
  } catch (error) {
    throw error instanceof CertificateFault ? new ConfigurationFault([error.message]) : error;
  }
}
