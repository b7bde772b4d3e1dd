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
  class?: string;
}

const EXTRA = 4;

export function List({ count, height, label, role, current, render, columns, class: name }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState({ top: 0, size: 600 });
  const read = () => {
    const element = box.current;
    if (element) setPlace({ top: element.scrollTop, size: element.clientHeight });
  };
  useLayoutEffect(() => {
    if (current >= 0) box.current!.scrollTop = current * height - box.current!.clientHeight / 2;
    read();
    const observer = new ResizeObserver(read);
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const reveal = () => {
      const element = box.current;
      if (!element || current < 0) return;
      const top = current * height;
      if (top < element.scrollTop) element.scrollTop = top;
      else if (top + height > element.scrollTop + element.clientHeight) element.scrollTop = top + height - element.clientHeight;
    };
    addEventListener('reveal', reveal);
    return () => removeEventListener('reveal', reveal);
  }, [current, height]);
  const first = Math.max(0, Math.floor(place.top / height) - EXTRA);
  const last = Math.min(count, Math.ceil((place.top + place.size) / height) + EXTRA);
  const rows = [];
  for (let k = first; k < last; k++) rows.push(render(k, k * height));
  const names = { role, 'aria-label': label, 'aria-rowcount': count };
  const list = (
    <div class={`list ${name ?? ''}`} ref={box} onScroll={read} {...(columns ? { role: 'rowgroup' } : names)}>
      <div class="rows" role="presentation" style={px({ height: count * height })}>{rows}</div>
    </div>
  );
  if (!columns) return list;
  return (
    <div class="grid" {...names}>
      <div class="row head" role="row">{columns.map(each => <span role="columnheader" key={each}>{each}</span>)}</div>
      {list}
    </div>
  );
}
