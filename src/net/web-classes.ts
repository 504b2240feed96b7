import { CloseEvent, Headers, Request, Response } from 'undici';

// Hono and its server build on these global classes. Node has copies from the same project, which it loads, with an unused
// fetch, on first access: a tenth of a start. Those of undici are loaded anyway, so this module must come before Hono
// (docs/decisions/0062).
Object.assign(globalThis, { CloseEvent, Headers, Request, Response });
