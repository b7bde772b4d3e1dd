// Reasons of failed tool calls in words.

const WORDS: Record<string, string> = {
  error: 'raised an error', timeout: 'timed out', canceled: 'canceled', refused: 'refused', unavailable: 'no such tool',
  invalid_arguments: 'invalid arguments', incomplete: 'incomplete call', interrupted: 'interrupted',
};

/** Return the reason of a failed call. Codes of later versions are shown as they are. */
export function describeCode(code: string): string {
  return WORDS[code] ?? code.replaceAll('_', ' ');
}

/** Return the text of a failed call without the name of the tool, after the reason unless the text contains it. */
export function explainFailure(code: string, name: string, text: string): string {
  const rest = text.startsWith(`${name} `) ? text.slice(name.length + 1) : text;
  const words = code && code !== 'error' ? describeCode(code) : '';
  return words && !rest.toLowerCase().includes(words) ? `${words}: ${rest}` : rest;
}
