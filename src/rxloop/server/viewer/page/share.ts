// Names and sizes of exported files.

/** Return the file name of a `Content-Disposition` header. */
export function parseFileName(header: string | null): string {
  return /filename="([\w.-]+)"/.exec(header ?? '')?.[1] ?? 'run';
}

/** Return the line of a case with another expected answer. An empty answer is omitted. */
export function makeCase(line: string, expected: string): string {
  const { expected: _, ...fields } = JSON.parse(line) as Record<string, unknown>;
  return JSON.stringify(expected ? { ...fields, expected } : fields);
}

export function formatBytes(size: number): string {
  if (size < 1000) return `${size} bytes`;
  const [value, unit] = size < 1e6 ? [size / 1e3, 'kB'] : [size / 1e6, 'MB'];
  return `${value.toFixed(value < 10 ? 1 : 0)} ${unit}`;
}
