import { CloseEvent, Headers, Request, Response } from 'undici';

// Hono and its server build on these global classes. Node has copies from the same project, but loading them, with a fetch
// that is not used, takes a tenth of the start. Those of undici are loaded anyway, so this module must come before Hono
// (docs/decisions/0062).
Object.assign(globalThis, { CloseEvent, Headers, Request, Response });
