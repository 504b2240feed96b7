// The braces of `${NAME}` would end a YAML flow mapping. While YAML is parsed, two private-use characters stand in for them.
const [OPEN, CLOSE] = ['\ue000', '\ue001'];

/** Matches a variable in text that `hideVariables` returned. */
export const HIDDEN_VARIABLE = new RegExp(`${OPEN}([A-Za-z0-9_]+)${CLOSE}`, 'g');

export const hideVariables = (text: string) => text.replace(/\$\{([A-Za-z_][A-Za-z0-9_]*)\}/g, `${OPEN}$1${CLOSE}`);
export const showVariables = (text: string) => text.replace(HIDDEN_VARIABLE, '$${$1}');
