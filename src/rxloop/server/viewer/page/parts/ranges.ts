// Highlights of a text in an element.

export const MAX_MARKS = 1_000;

/** Highlight the matches of a text in an element, ignoring case, and return them. */
export function highlight(name: string, element: HTMLElement | null, text: string): Range[] {
  const ranges = element && text ? findRanges(element, text) : [];
  CSS.highlights?.set(name, new Highlight(...ranges));
  return ranges;
}

export const bringIntoView = (range: Range | undefined): void => range?.startContainer.parentElement?.scrollIntoView({ block: 'center' });

function findRanges(element: HTMLElement, text: string): Range[] {
  const ranges: Range[] = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const wanted = text.toLowerCase();
  for (let node = walker.nextNode(); node && ranges.length < MAX_MARKS; node = walker.nextNode()) {
    const own = node.textContent!.toLowerCase();
    // Lower case can have another length.
    if (own.length !== node.textContent!.length) continue;
    for (let at = own.indexOf(wanted); at >= 0 && ranges.length < MAX_MARKS; at = own.indexOf(wanted, at + wanted.length)) {
      const range = new Range();
      range.setStart(node, at);
      range.setEnd(node, at + wanted.length);
      ranges.push(range);
    }
  }
  return ranges;
}
