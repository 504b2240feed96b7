import type { Route } from '../router/catalogue.ts';
import { graceOf } from '../router/on-cancel.ts';
import type { Audience } from '../spend/audience.ts';
import type { ChatApp } from './quote.ts';

/** The clients of a stream, watched while model servers work for it. */
type WatchedClients = {
  /** Returns the signal that ends a call by this route. The signal replaces the one of an earlier call. */
  of(route: Route): AbortSignal;
  /** Returns whether the last call was ended by its signal. */
  isCancelled(): boolean;
  /** Stops watching: the call has ended by itself. */
  end(): void;
};

/**
 * Watches the clients of a stream. The call is to be ended when the last of them has been gone for as long as the settings
 * in force at that moment allow.
 */
export function watchClients(app: Pick<ChatApp, 'config'>, audience: Audience): WatchedClients {
  let controller: AbortController | undefined;
  let end = () => {};
  return {
    of({ upstream }) {
      end();
      const own = new AbortController();
      controller = own;
      end = audience.watch(
        () => graceOf(app.config.router, upstream),
        () => own.abort(),
      );
      return own.signal;
    },
    isCancelled: () => controller?.signal.aborted ?? false,
    end: () => end(),
  };
}
