/**
 * Members of a chat completion beyond OpenAI's own that model servers understand and that cost nothing but their bytes: with any
 * value, the answer stays within the output limit. Left out are those that choose code, templates, slots, adapters or limits
 * (`logits_processors`, `chat_template`, `id_slot`, `lora_path`, `n_predict`, `options`) and those that generate text which is not
 * returned (`best_of`, `use_beam_search`).
 */
export const FREE_MEMBERS = [
  // Samplers: vLLM, SGLang, llama.cpp, Ollama.
  ...['top_k', 'min_p', 'top_a', 'typical_p', 'tfs_z', 'top_n_sigma', 'min_keep'],
  ...['repetition_penalty', 'repeat_penalty', 'repeat_last_n', 'length_penalty'],
  ...['dynatemp_range', 'dynatemp_exponent', 'xtc_probability', 'xtc_threshold'],
  ...['dry_multiplier', 'dry_base', 'dry_allowed_length', 'dry_penalty_last_n', 'dry_sequence_breakers'],
  ...['mirostat', 'mirostat_tau', 'mirostat_eta', 'samplers'],
  ...['stop_token_ids', 'stop_regex', 'include_stop_str_in_output', 'no_stop_trim', 'bad_words', 'allowed_token_ids'],
  ...['min_tokens', 'ignore_eos', 'skip_special_tokens', 'spaces_between_special_tokens'],
  // Structured output.
  ...['guided_json', 'guided_regex', 'guided_choice', 'guided_grammar', 'guided_whitespace_pattern'],
  ...['guided_decoding_backend', 'structured_outputs', 'grammar', 'json_schema', 'regex', 'ebnf'],
  // Switches of templates and of reasoning.
  ...['chat_template_kwargs', 'add_generation_prompt', 'continue_final_message'],
  ...['enable_thinking', 'thinking', 'thinking_budget', 'think', 'reasoning', 'include_reasoning'],
  ...['separate_reasoning', 'stream_reasoning', 'reasoning_format', 'cache_prompt'],
] as const;
