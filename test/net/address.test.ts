import assert from 'node:assert/strict';
import test from 'node:test';
import { createAddressReader, networkOf } from '../../src/net/address.ts';
import { openTestServer } from '../helper/server.ts';
import { assertRefused } from '../http/refused.ts';

/** Trusted proxies, the peer of the connection, X-Forwarded-For, and whose request it then is. */
type Chain = [why: string, trusted: string[], peer: string | undefined, forwarded: string | undefined, address: string];
// biome-ignore format: a table is read by its columns
const CHAINS: Chain[] = [
  ['without proxies it is the peer', [], '203.0.113.7', undefined, '203.0.113.7'],
  ['without proxies the header is anybody’s invention', [], '203.0.113.7', '198.51.100.1', '203.0.113.7'],
  ['a peer that is no trusted proxy is not believed', ['10.0.0.1'], '10.0.0.2', '198.51.100.1', '10.0.0.2'],
  ['a trusted proxy is believed', ['10.0.0.1'], '10.0.0.1', '198.51.100.1', '198.51.100.1'],
  ['a trusted proxy that says nothing asks for itself', ['10.0.0.1'], '10.0.0.1', undefined, '10.0.0.1'],
  ['a trusted proxy that says an empty thing asks for itself', ['10.0.0.1'], '10.0.0.1', '', '10.0.0.1'],
  ['what stands before its word is invention', ['10.0.0.1'], '10.0.0.1', '1.1.1.1, 198.51.100.1', '198.51.100.1'],
  ['a chain of proxies is followed to its end', ['10.0.0.0/8'], '10.0.0.1', '198.51.100.1, 10.9.9.9', '198.51.100.1'],
  ['a chain stops at a proxy that is not trusted', ['10.0.0.0/8'], '10.0.0.1', '1.1.1.1, 198.51.100.1, 10.9.9.9', '198.51.100.1'],
  ['an invented trusted hop leads nowhere', ['10.0.0.0/8'], '10.0.0.1', '10.1.1.1, 198.51.100.1', '198.51.100.1'],
  ['a chain of proxies alone is the first of them', ['10.0.0.0/8'], '10.0.0.1', '10.1.1.1, 10.2.2.2', '10.1.1.1'],
  ['a network has an end', ['10.0.0.0/30'], '10.0.0.4', '198.51.100.1', '10.0.0.4'],
  ['a network has a last address', ['10.0.0.0/30'], '10.0.0.3', '198.51.100.1', '198.51.100.1'],
  ['/0 trusts everybody', ['0.0.0.0/0'], '203.0.113.7', '198.51.100.1', '198.51.100.1'],
  ['/32 is one address', ['10.0.0.1/32'], '10.0.0.1', '198.51.100.1', '198.51.100.1'],
  ['IPv4 on an IPv6 socket is IPv4', ['127.0.0.1'], '::ffff:127.0.0.1', '198.51.100.1', '198.51.100.1'],
  ['IPv4 on an IPv6 socket is in IPv4 networks', ['127.0.0.0/8'], '::ffff:127.1.2.3', '198.51.100.1', '198.51.100.1'],
  ['IPv4 on an IPv6 socket is the same caller', [], '::ffff:203.0.113.7', undefined, '203.0.113.7'],
  ['a forwarded IPv4 in IPv6 is the same caller', ['10.0.0.1'], '10.0.0.1', '::ffff:203.0.113.7', '203.0.113.7'],
  ['a proxy in IPv6 clothes is trusted', ['10.0.0.0/8'], '10.0.0.1', '198.51.100.1, ::ffff:10.2.2.2', '198.51.100.1'],
  ['an IPv6 proxy is believed', ['::1'], '::1', '2001:db8::7', '2001:db8::7'],
  ['an IPv6 proxy may be written out', ['0:0:0:0:0:0:0:1'], '::1', '2001:db8::7', '2001:db8::7'],
  ['an IPv6 network', ['fd00::/8'], 'fd12:3456::1', '198.51.100.1', '198.51.100.1'],
  ['an IPv6 peer outside it', ['fd00::/8'], 'fe80::1', '198.51.100.1', 'fe80::1'],
  ['an IPv4 network does not trust IPv6', ['0.0.0.0/0'], '2001:db8::7', '198.51.100.1', '2001:db8::7'],
  ['what is no address is not believed', ['10.0.0.1'], '10.0.0.1', 'unknown', '10.0.0.1'],
  ['nor is what stands before it', ['10.0.0.1'], '10.0.0.1', '198.51.100.1, unknown', '10.0.0.1'],
  ['an injected line is no address', ['10.0.0.1'], '10.0.0.1', '198.51.100.1"; drop', '10.0.0.1'],
  ['spaces do not matter', ['10.0.0.0/8'], '10.0.0.1', '  198.51.100.1  ,10.2.2.2 ', '198.51.100.1'],
  ['a socket that is gone has no address', ['10.0.0.1'], undefined, '198.51.100.1', 'unknown'],
];

for (const [why, trusted, peer, forwarded, address] of CHAINS)
  test(`${why}: ${peer} with ${JSON.stringify(forwarded)} is ${address}`, () => {
    assert.equal(createAddressReader(trusted)(peer, forwarded), address);
  });

test('a chain of ten thousand hops is walked once', () => {
  const read = createAddressReader(['10.0.0.0/8']);
  assert.equal(read('10.0.0.1', `198.51.100.1, ${Array(10_000).fill('10.2.2.2').join(', ')}`), '198.51.100.1');
});

const LIMITS = { wallet_requests_per_minute: 0, account_requests_per_minute: 0, failed_auth_per_minute: 1 };

test('behind a trusted proxy every client fails for itself', async (t) => {
  const purser = await openTestServer(t, { settings: { trusted_proxies: ['127.0.0.1'], limits: LIMITS } });
  const fail = (forwarded: string) =>
    purser.ask('GET', '/v1/account', { token: 'guess', headers: { 'x-forwarded-for': forwarded } });
  for (const client of ['198.51.100.1', '198.51.100.2', '2001:db8::7']) {
    assertRefused(await fail(client), 401, 'unauthenticated');
    assertRefused(await fail(client), 429, 'rate_limited');
    assertRefused(await fail(`1.2.3.4, ${client}`), 429, 'rate_limited', 'what the client wrote itself helps nobody');
  }
});

test('a client that is no trusted proxy cannot pass as others by X-Forwarded-For', async (t) => {
  for (const trusted_proxies of [[], ['10.0.0.0/8', '::1']]) {
    const purser = await openTestServer(t, { settings: { trusted_proxies, limits: LIMITS } });
    const fail = (forwarded: string) =>
      purser.ask('GET', '/v1/account', { token: 'guess', headers: { 'x-forwarded-for': forwarded } });
    assertRefused(await fail('198.51.100.1'), 401, 'unauthenticated');
    for (const client of ['198.51.100.2', '198.51.100.3', '127.0.0.1', '10.0.0.1'])
      assertRefused(await fail(client), 429, 'rate_limited', client);
  }
});

test('on a socket for both, IPv4 is trusted as IPv4', async (t) => {
  const purser = await openTestServer(t, {
    settings: { listen: '[::]:0', trusted_proxies: ['127.0.0.0/8'], limits: LIMITS },
  });
  purser.url = `http://127.0.0.1:${purser.app.address.port}`;
  const fail = (forwarded: string) =>
    purser.ask('GET', '/v1/account', { token: 'guess', headers: { 'x-forwarded-for': forwarded } });
  for (const client of ['198.51.100.1', '198.51.100.2']) {
    assertRefused(await fail(client), 401, 'unauthenticated');
    assertRefused(await fail(client), 429, 'rate_limited');
  }
});

test('failures and connections are counted by IPv4 address and by IPv6 /64', () => {
  const networks: Record<string, string> = {
    '203.0.113.7': '203.0.113.7',
    '::ffff:203.0.113.7': '203.0.113.7',
    '2001:db8:1:2:3:4:5:6': '2001:db8:1:2::/64',
    '2001:0db8:0001:0002::': '2001:db8:1:2::/64',
    '2001:db8:1:2:ffff::1': '2001:db8:1:2::/64',
    '2001:db8::7': '2001:db8:0:0::/64',
    '2001:db8:0:0:9::1': '2001:db8:0:0::/64',
    '::1': '0:0:0:0::/64',
    'fe80::1:2:3:4': 'fe80:0:0:0::/64',
    unknown: 'unknown',
  };
  for (const [address, network] of Object.entries(networks)) assert.equal(networkOf(address), network, address);
  assert.equal(networkOf(undefined), 'unknown');
});
