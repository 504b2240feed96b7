import type { TestContext } from 'node:test';
import { type CallToolResult, Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

/** The two ways in which the protocol begins: by `initialize`, and since 2026-07-28 by no message at all. */
export const REVISIONS = { '2025-11-25': 'legacy', '2026-07-28': { pin: '2026-07-28' } } as const;

export type McpClient = Client & {
  /** Calls a tool and returns the structure of its result. */
  tool(name: string, args?: Record<string, unknown>): Promise<CallToolResult & { structuredContent: any }>;
};

/** Connects the SDK's client with a wallet token. */
export async function connectMcp(
  t: Pick<TestContext, 'after'>,
  url: string,
  token: string,
  revision: keyof typeof REVISIONS = '2025-11-25',
): Promise<McpClient> {
  const client = new Client({ name: 'test', version: '1' }, { versionNegotiation: { mode: REVISIONS[revision] } });
  const headers = { authorization: `Bearer ${token}` };
  await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/v1/mcp`), { requestInit: { headers } }));
  t.after(() => client.close());
  return Object.assign(client, {
    tool: (name: string, args: Record<string, unknown> = {}) => client.callTool({ name, arguments: args }) as any,
  });
}
