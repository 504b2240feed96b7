import type { LeaseServer } from './leases.ts';

export const events = (purser: LeaseServer, name: string) =>
  purser.log.map((line) => JSON.parse(line)).filter(({ event }) => event === name);

export const statusOf = async (purser: LeaseServer, walletId: string) =>
  (await purser.ask('GET', `/v1/wallets/${walletId}`, { token: purser.accountKey })).body.status;
