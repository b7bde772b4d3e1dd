// JSON as a tree that can be folded. Names and texts are shown as text.

import { useState } from 'preact/hooks';
import { Text } from './text.tsx';

const SHOWN = 100;
const LONG = 2_000;

export function Json({ value, depth = 0 }: { value: unknown; depth?: number }) {
  if (value === null || typeof value !== 'object') return <Leaf value={value} />;
  const entries = Array.isArray(value) ? value.map((each, k) => [String(k), each] as const) : Object.entries(value);
  if (!entries.length) return <span class="faint">{Array.isArray(value) ? '[]' : '{}'}</span>;
  return (
    <div class={depth ? 'tree inner' : 'tree'}>
      <Entries entries={entries} depth={depth} />
    </div>
  );
}

function Entries({ entries, depth }: { entries: (readonly [string, unknown])[]; depth: number }) {
  const [count, setCount] = useState(SHOWN);
  return (
    <>
      {entries.slice(0, count).map(([name, each]) => <Entry key={name} name={name} value={each} depth={depth} />)}
      {entries.length > count && (
        <button class="more" onClick={() => setCount(count * 4)}>{entries.length - count} more</button>
      )}
    </>
  );
}

function Entry({ name, value, depth }: { name: string; value: unknown; depth: number }) {
  const [isOpen, setOpen] = useState(depth < 2);
  const isBranch = value !== null && typeof value === 'object' && Object.keys(value).length > 0;
  if (!isBranch) return <div class="entry"><span class="name"><Text text={name} />:</span> <Json value={value} depth={depth + 1} /></div>;
  const count = Object.keys(value).length;
  return (
    <div class="entry">
      <button class="name" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Text text={name} />: <span class="faint">{Array.isArray(value) ? `[ ${count} ]` : `{ ${count} }`}</span>
      </button>
      {isOpen && <Json value={value} depth={depth + 1} />}
    </div>
  );
}

function Leaf({ value }: { value: unknown }) {
  const [isWhole, setWhole] = useState(false);
  if (typeof value !== 'string') return <span class={typeof value === 'number' ? 'number' : 'literal'}>{String(value)}</span>;
  const isCut = !isWhole && value.length > LONG;
  return (
    <span class="string">
      "<Text text={isCut ? value.slice(0, LONG) : value} />"
      {isCut && <button class="more" onClick={() => setWhole(true)}>Show all {value.length.toLocaleString('en-US')} characters</button>}
    </span>
  );
}
