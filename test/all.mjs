// `npm test`, `npm run test:engines`, `npm run test:soak`: runs one layer of the tests (test/layers.ts). It has no other
// content, as another Node cannot even parse the rest.
import './helper/pinned-node.mjs';

const { runLayer } = await import('./run.ts');
await runLayer(process.argv[2] ?? 'gate');
