/** Return a style whose numbers are pixels. */
export function px(style: Record<string, number | string>): Record<string, string> {
  return Object.fromEntries(Object.entries(style).map(([name, value]) => [name, typeof value === 'number' ? `${value}px` : value]));
}
