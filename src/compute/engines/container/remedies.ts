/** The remedies for errors of reaching an engine, by their words: those of OpenSSL, of ssh2 and sshd, of the system. */
const REMEDIES: [words: RegExp, what: string][] = [
  [
    /unable to verify|self-signed certificate|unable to get (local )?issuer/,
    "tls.ca is not the authority of the engine's certificate. Correct it; if it was right until now, somebody else answers at that address.",
  ],
  [/altnames|not cert's CN/, 'Use the name or the address that the engine’s certificate was made for.'],
  [/certificate (has expired|is not yet valid)/, 'Renew the engine’s certificate, or correct the clock.'],
  [
    /alert (bad certificate|unknown ca|certificate|handshake)|certificate required/,
    'The engine does not accept tls.cert: it has to be made by the authority that its --tlscacert names, for clients.',
  ],
  [/key values mismatch/, 'tls.key is not the key of tls.cert.'],
  [/PEM routines/, 'The files of tls must be PEM, and the key without a passphrase.'],
  [
    /wrong version number|packet length too long|HTTP request to an HTTPS/,
    'One side speaks TLS and the other does not: set tls, or correct the port.',
  ],
  [
    /another host key/,
    'If the host was made anew, set host_key to its new key; if not, somebody else answers at its address.',
  ],
  [/no matching host key/, 'The host has no key of the kind of host_key.'],
  [/authentication methods failed/, 'Add the public half of identity_file to the authorized_keys of this user there.'],
  [/parse privateKey/, 'identity_file must be a private key without a passphrase.'],
  [/administratively prohibited/, 'Its sshd has to allow this user AllowStreamLocalForwarding.'],
  [
    /Channel open failure/,
    'The host is reached. Is the engine running at that path, and may this user open its socket there?',
  ],
  [/, open '/, 'Correct the path of this file, or let Purser read it.'],
];

/** Returns the remedy for an error of reaching an engine, as a sentence. */
export function remedyFor(text: string): string {
  const known = REMEDIES.find(([words]) => words.test(text))?.[1];
  return known ?? 'Is the engine running, and may this user open its socket?';
}
