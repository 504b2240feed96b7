import * as v from 'valibot';
import { Id, Time, wholeNumber } from './parts.ts';

/** The shapes of `POST /v1/compute/port`. */
export const PortRequest = v.object({ id: Id, port: wholeNumber(1, 65_535) });
export const PortLink = v.object({ id: v.string(), port: wholeNumber(1, 65_535), url: v.string(), expires_at: Time });
