import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';

/** The target of a link or a session: one port of one resource. */
export type PortAccess = { resourceId: string; port: number };

/** Lifetime of a link, and of the session of a browser that has used one, in seconds. */
const LINK_SECONDS = 300;
const SESSION_SECONDS = 12 * 3600;
const NONCE_BYTES = 12;
const KEY_BYTES = 32;

type Purpose = 'link' | 'session';

export type PortLinks = {
  /** Signs a link. It is valid once, for five minutes, and not after a restart or `until`, the end of the lease in Unix seconds. */
  mint(to: PortAccess, until: number): { code: string; expiresAt: number };
  /** Returns whether a link may still be exchanged for a session of this port, and leaves it as it is. */
  isUnused(code: string, to: PortAccess): boolean;
  /**
   * Exchanges a link for the session of a browser. Its length does not depend on the end of the lease, which may be extended. Returns
   * undefined for a link that is no longer valid, or is for another port.
   */
  redeem(code: string, to: PortAccess): { session: string; seconds: number } | undefined;
  /** Returns whether a session opens this port now. */
  opens(session: string, to: PortAccess): boolean;
};

/**
 * Creates the links with which a browser opens ports. Links and sessions are signed and not stored: sessions by the master key, so
 * that they outlive a restart; links by a key of this process, which remembers the used ones until they would have ended.
 * `masterKey` returns the current master key; `now` Unix seconds.
 */
export function createPortLinks(masterKey: () => Buffer, now: () => number): PortLinks {
  /** Used links, by the signed content: base64 ignores foreign characters, so one signature can be written in several ways. */
  const used = new Map<string, number>();
  const linkKey = randomBytes(KEY_BYTES);

  const macOf = (kind: Purpose, payload: string) =>
    createHmac('sha256', kind === 'link' ? linkKey : masterKey())
      .update(`purser/port-access/v1\0${payload}`)
      .digest();
  function sign(kind: Purpose, { resourceId, port }: PortAccess, expiresAt: number): string {
    const payload = [kind, resourceId, port, expiresAt, randomBytes(NONCE_BYTES).toString('base64url')].join('.');
    return `${payload}.${macOf(kind, payload).toString('base64url')}`;
  }
  const payloadOf = (signed: string) => signed.slice(0, Math.max(0, signed.lastIndexOf('.')));
  function isGood(signed: string, kind: Purpose, { resourceId, port }: PortAccess): boolean {
    const payload = payloadOf(signed);
    const [given, wanted] = [Buffer.from(signed.slice(payload.length + 1), 'base64url'), macOf(kind, payload)];
    if (given.length !== wanted.length || !timingSafeEqual(given, wanted)) return false;
    const [kindThere, resourceThere, portThere, expiresAt] = payload.split('.');
    const isSame = kindThere === kind && resourceThere === resourceId && portThere === String(port);
    return isSame && now() < Number(expiresAt);
  }
  const isUnused = (code: string, to: PortAccess) => !used.has(payloadOf(code)) && isGood(code, 'link', to);

  return {
    mint(to, until) {
      const expiresAt = Math.min(now() + LINK_SECONDS, until);
      return { code: sign('link', to, expiresAt), expiresAt };
    },
    isUnused,
    redeem(code, to) {
      for (const [it, expiresAt] of used) if (expiresAt <= now()) used.delete(it);
      if (!isUnused(code, to)) return undefined;
      used.set(payloadOf(code), now() + LINK_SECONDS);
      return { session: sign('session', to, now() + SESSION_SECONDS), seconds: SESSION_SECONDS };
    },
    opens: (session, to) => isGood(session, 'session', to),
  };
}
