export { resetConnection } from '../../src/net/reset.ts';
