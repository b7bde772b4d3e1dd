// A list of rows of equal height, of which only the visible ones are in the document.

import { type ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { px } from './px.ts';

interface Props {
  count: number;
  height: number;
  label: string;
  role: 'treegrid' | 'grid' | 'table';
  /** Index of the row that `reveal` brings into view, or -1. */
  current: number;
  render: (index: number, top: number) => ComponentChildren;
  /** Titles of the columns, shown in a row above the list. */
  columns?: string[];
  /** Content over the rows, for the part that is in the document. */
  overlay?: (first: number, last: number) => ComponentChildren;
  /** Content below the last row. */
  after?: ComponentChildren;
  /** New rows are brought into view if the end was visible. */
  followsEnd?: boolean;
  class?: string;
  /** The list itself can be focused, because its rows have no controls. */
  isFocusable?: boolean;
}

const EXTRA = 4;

export function List({ count, height, label, role, current, render, columns, overlay, after, followsEnd, class: name, isFocusable }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState({ top: 0, size: 600 });
  const isAtEnd = useRef(true);
  const read = () => {
    const element = box.current;
    if (!element) return;
    isAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < height;
    setPlace({ top: element.scrollTop, size: element.clientHeight });
  };
  useLayoutEffect(() => {
    if (current >= 0) box.current!.scrollTop = current * height - box.current!.clientHeight / 2;
    read();
    const observer = new ResizeObserver(read);
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (followsEnd && isAtEnd.current) box.current!.scrollTop = box.current!.scrollHeight;
  });
  const row = useRef(current);
  row.current = current;
  useEffect(() => {
    const bring = () => {
      const element = box.current;
      if (!element || row.current < 0) return;
      const top = row.current * height;
      if (top < element.scrollTop) element.scrollTop = top;
      else if (top + height > element.scrollTop + element.clientHeight) element.scrollTop = top + height - element.clientHeight;
    };
    // The selection has just changed, and this list is only rendered before the next frame.
    const reveal = () => requestAnimationFrame(bring);
    addEventListener('reveal', reveal);
    return () => removeEventListener('reveal', reveal);
  }, [height]);
  const first = Math.max(0, Math.floor(place.top / height) - EXTRA);
  const last = Math.min(count, Math.ceil((place.top + place.size) / height) + EXTRA);
  const rows = [];
  for (let k = first; k < last; k++) rows.push(render(k, k * height));
  const names = { role, 'aria-label': label, 'aria-rowcount': count };
  const list = (
    <div class={`list ${name ?? ''}`} ref={box} onScroll={read} tabIndex={isFocusable ? 0 : undefined} {...(columns ? { role: 'rowgroup' } : names)}>
      <div class="rows" role="presentation" style={px({ height: count * height })}>{rows}{overlay?.(first, last)}</div>
      {after}
    </div>
  );
  if (!columns) return list;
  return (
    <div class="grid" {...names}>
      <div class="row head" role="row">{columns.map(each => <span role="columnheader" key={each} title={each}>{each}</span>)}</div>
      {list}
    </div>
  );
}
