import { rootCertificates } from 'node:tls';
import type { SecretsOrder } from '../backend.ts';
import { PROXY_VARIABLES } from './egress.ts';

/**
 * The files and variables by which the programs of a machine trust the authority of its secrets. One file holds its certificate
 * alone, another also those that the image trusts: most variables name the only file that a program trusts.
 */

type TrustFile = { path: string; content: Buffer };

export const AUTHORITY_FILE = '/.purser-ca.pem';
export const ROOTS_FILE = '/.purser-roots.pem';

/** Real paths (not links) of the authorities that images trust: Debian, Alpine; Fedora and its kin; SUSE; Arch. */
export const IMAGE_ROOTS = [
  '/etc/ssl/certs/ca-certificates.crt',
  '/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem',
  '/var/lib/ca-certificates/ca-bundle.pem',
  '/etc/ca-certificates/extracted/tls-ca-bundle.pem',
];
/** The label that a machine with secrets has, of its own tag: one of an image that was made from another lease has that lease's. */
export const SECRETS_LABEL = 'purser.secrets';
export const ROOTS_BYTES_MAX = 4 * 1024 * 1024;

const TRUST_VARIABLES: Readonly<Record<string, string>> = {
  // These add to what a program trusts.
  NODE_EXTRA_CA_CERTS: AUTHORITY_FILE,
  DENO_CERT: AUTHORITY_FILE,
  ...Object.fromEntries(
    ['SSL_CERT_FILE', 'CURL_CA_BUNDLE', 'REQUESTS_CA_BUNDLE', 'PIP_CERT', 'GIT_SSL_CAINFO', 'AWS_CA_BUNDLE'].map(
      (name) => [name, ROOTS_FILE],
    ),
  ),
};

/** Returns the variables of a machine with these secrets, whose files are in `directory`; none without any. */
export function trustVariables(secrets: SecretsOrder | undefined, directory = ''): Readonly<Record<string, string>> {
  if (!secrets) return {};
  const trust = Object.entries(TRUST_VARIABLES).map(([name, file]) => [name, directory + file]);
  return { ...secrets.variables, ...Object.fromEntries(trust) };
}

/** Returns the files of such a machine. An image without roots of its own gets those of Node. */
export function trustFiles(
  { authority }: Pick<SecretsOrder, 'authority'>,
  imageRoots: Buffer | undefined,
  directory = '',
): TrustFile[] {
  const roots = imageRoots ?? Buffer.from(rootCertificates.join('\n'));
  return [
    { path: directory + AUTHORITY_FILE, content: Buffer.from(authority) },
    { path: directory + ROOTS_FILE, content: Buffer.concat([roots, Buffer.from(`\n${authority}`)]) },
  ];
}

/** Variables by which shells, linkers and interpreters find what they run. */
const RUNS_PROGRAMS =
  /^(PATH|HOME|USER|SHELL|TERM|IFS|ENV|BASH_ENV|TMPDIR|LD_.*|GCONV_PATH|(NODE|PERL5?|RUBY)_?(OPT|OPTIONS|LIB)|PYTHON.*)$/;

/** Returns whether a variable is Purser's, or one that decides which programs run. */
export const isReservedVariable = (name: string): boolean =>
  /^(PURSER_|NVIDIA_)/.test(name) || RUNS_PROGRAMS.test(name) || name in PROXY_VARIABLES || name in TRUST_VARIABLES;
