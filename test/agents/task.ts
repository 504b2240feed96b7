type Json = Record<string, any>;

/** What agents call the tools for it. */
const READING = /^(read|read_files?|view)$/i;
const WRITING = /^(write|write_file|create)$/i;
const RUNNING = /^(bash|exec|exec_command|run_commands|shell|shell_command|run_shell_command)$/i;

export const TASK = 'Read note.txt and then write proof.txt.';
/** What note.txt says: only who read it can write it. */
export const newNote = (): string => `note-${Math.random().toString(36).slice(2, 12)}`;
const NOTE = /note-\w+/;

/**
 * Returns a model that does the task with the tools of whichever agent asks: it reads the note, writes what the tool's result said
 * into the other file, and says so. Whoever offers no tools is told something short: agents ask for titles too.
 */
export const taskModel =
  (directory: string) =>
  ({ messages, tools = [] }: Json): Json => {
    const results = messages.filter((it: Json) => it.role === 'tool');
    const [reading, writing, running] = [READING, WRITING, RUNNING].map((name) =>
      tools.find((it: Json) => name.test(it.function.name)),
    );
    if (!(reading && writing) && !running) return { role: 'assistant', content: 'A task with two files' };
    if (results.length > 1) return { role: 'assistant', content: 'The proof is written.' };
    const note = NOTE.exec(JSON.stringify(results.at(-1)?.content ?? ''))?.[0];
    const isFirst = results.length === 0;
    if (!isFirst && !note) return { role: 'assistant', content: 'The tool did not say what the note says.' };
    const values = {
      path: `${directory}/${isFirst ? 'note.txt' : 'proof.txt'}`,
      content: note,
      command: isFirst ? 'cat note.txt' : `printf ${note} > proof.txt`,
    };
    const { name, parameters } = ((isFirst ? reading : writing) ?? running).function;
    const call = { name, arguments: JSON.stringify(fill(parameters, values)) };
    const id = `call_${messages.length}`;
    return { role: 'assistant', content: null, tool_calls: [{ id, type: 'function', function: call }] };
  };

/** Returns arguments that fit a tool's schema, with the values where their names say that they belong. */
function fill({ properties = {}, required = [] }: Json, values: Json): Json {
  const wanted = Object.entries<Json>(properties).filter(([name]) => required.includes(name) || kindOf(name));
  return Object.fromEntries(wanted.map(([name, schema]) => [name, argumentOf(name, schema, values)]));
}

function argumentOf(name: string, schema: Json, values: Json): unknown {
  const kind = kindOf(name);
  if (!kind || values[kind] === undefined) return plain(schema);
  if (schema.type === 'array') return [schema.items?.type === 'object' ? fill(schema.items, values) : values[kind]];
  return values[kind];
}

function plain({ type, enum: choices }: Json): unknown {
  if (choices) return choices[0];
  if (type === 'array') return [];
  return { boolean: false, integer: 1, number: 1, object: {} }[type as string] ?? 'for the task';
}

const kindOf = (name: string) =>
  /^(absolute_?|file_?)?paths?$|^files$/i.test(name)
    ? 'path'
    : /^(content|contents|file_?text)$/i.test(name)
      ? 'content'
      : /^(cmd|commands?)$/i.test(name)
        ? 'command'
        : undefined;

export const BUDGET_TASK = 'What has the wallet left?';

/** A model that asks the wallet's own tool what it has left, looking for it first where an agent hides its tools, and says so. */
export function budgetModel({ messages, tools = [] }: Json): Json {
  const left = /available_usd\W+([\d.]+)/.exec(JSON.stringify(messages.filter((it: Json) => it.role === 'tool')))?.[1];
  if (left) return { role: 'assistant', content: `The wallet has ${left} USD.` };
  const names: string[] = tools.map((it: Json) => it.function.name);
  const name = names.find((it) => it.endsWith('wallet_budget')) ?? names.find((it) => /^tool_?search$/i.test(it));
  if (!name) return { role: 'assistant', content: 'A question about money' };
  const query = { query: 'wallet_budget', max_results: 5 };
  const call = { name, arguments: JSON.stringify(name.endsWith('wallet_budget') ? {} : query) };
  const id = `call_${messages.length}`;
  return { role: 'assistant', content: null, tool_calls: [{ id, type: 'function', function: call }] };
}
