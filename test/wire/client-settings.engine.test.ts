import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import test from 'node:test';
import { clientSettings } from '../../src/wire/client-settings.ts';
import { hasComponent } from '../helper/component.ts';

test('a parser of TOML reads the id and the key that went into the block of Codex', (t) => {
  if (!hasComponent(t, 'python3')) return;
  const baseUrl = 'https://purser.example.org/v1/router';
  for (const id of ['qwen3-8b', 'it\'s "a" \\ \\u0041 """ # [x] = 1', '\u{1f600} é 模型']) {
    const model = { id, contextLength: 32_768, maxOutputTokens: 8192 };
    const { block } = clientSettings('codex', { baseUrl, apiKey: 'svc_router_a', model });
    const script = 'import json, sys, tomllib; print(json.dumps(tomllib.load(sys.stdin.buffer)))';
    assert.deepEqual(JSON.parse(execFileSync('python3', ['-c', script], { input: block, encoding: 'utf8' })), {
      model: id,
      model_provider: 'purser',
      model_context_window: 32_768,
      model_providers: {
        purser: { name: 'Purser', base_url: baseUrl, experimental_bearer_token: 'svc_router_a', wire_api: 'responses' },
      },
    });
  }
});
