// JSON as a tree that can be folded. Names and texts are shown as text.

import { createContext } from 'preact';
import { useContext, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { findBytes, FOLD, formatPath, parseEmbedded, toText, WINDOW } from '../json.ts';
import { cut, omissionOf } from '../omissions.ts';
import { isWrapped, toggleWrap } from '../store.ts';
import { formatNumber, formatSize } from '../time.ts';
import { download } from './download.ts';
import { bringIntoView, highlight, MAX_MARKS } from './ranges.ts';
import { hasMatchAfter, LoadRest, Text } from './text.tsx';

type Path = readonly (string | number)[];

/** True in trees whose values have buttons that copy them. */
const HasCopies = createContext(false);

/** A tree with buttons that copy and download the whole value. */
export function JsonDocument({ value, name }: { value: unknown; name: string }) {
  const [isRaw, setRaw] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  return (
    <div class="json">
      <p class="tools">
        <button aria-pressed={isRaw} onClick={() => setRaw(!isRaw)}>Raw</button>
        <button aria-pressed={isWrapped.value} title="Break long lines (W)" onClick={toggleWrap}>Wrap</button>
        <Copy text={() => toText(value)} label="Copy" />
        <button onClick={() => download([toText(value)], `${name}.json`)}>Download</button>
      </p>
      <Find box={box} change={`${name} ${isRaw}`} />
      <div class={`block mono${isWrapped.value ? '' : ' nowrap'}`} tabIndex={0} ref={box}>{isRaw ? <Text text={toText(value)} /> : <HasCopies.Provider value={true}><Json value={value} /></HasCopies.Provider>}</div>
    </div>
  );
}

/** Field that highlights a text in the opened parts of a tree. Enter goes to the next match. */
function Find({ box, change }: { box: { current: HTMLElement | null }; change: string }) {
  const [text, setText] = useState('');
  const ranges = useRef<Range[]>([]);
  const [place, setPlace] = useState({ at: 0, count: 0 });
  useEffect(() => {
    ranges.current = highlight('found', box.current, text);
    setPlace({ at: 0, count: ranges.current.length });
    return () => void CSS.highlights?.delete('found');
  }, [text, change]);
  const next = (event: KeyboardEvent) => {
    if (event.key !== 'Enter' || !place.count) return;
    // Matches are numbered from 1. No match is selected at first.
    const at = event.shiftKey ? (place.at > 1 ? place.at - 1 : place.count) : (place.at % place.count) + 1;
    bringIntoView(ranges.current[at - 1]);
    setPlace({ ...place, at });
  };
  return (
    <label class="find">
      <input type="text" aria-label="Find in this event" placeholder="Find" value={text} onInput={event => setText(event.currentTarget.value)} onKeyDown={next} />
      <span class="quiet" role="status">{text && `${place.at ? `${formatNumber(place.at)} of ` : ''}${formatNumber(place.count)}${place.count === MAX_MARKS ? '+' : ''} ${place.count === 1 ? 'match' : 'matches'}`}</span>
    </label>
  );
}

/** Objects and arrays below the second level are closed at first. `depth` is the level of the value itself. */
export function Json({ value, path = [], depth = 0 }: { value: unknown; path?: Path; depth?: number }) {
  if (value === null || typeof value !== 'object') return <Leaf value={value} path={path} />;
  if (!Object.keys(value).length) return <span class="faint">{Array.isArray(value) ? '[]' : '{}'}</span>;
  return (
    <div class={path.length || depth ? 'tree inner' : 'tree'}>
      {Array.isArray(value) ? <Elements values={value} path={path} depth={depth} /> : <Members value={value} path={path} depth={depth} />}
      <Rest count={omissionOf(value)?.own ?? 0} />
    </div>
  );
}

function Members({ value, path, depth }: { value: object; path: Path; depth: number }) {
  const [count, setCount] = useState(WINDOW);
  const entries = useMemo(() => Object.entries(value), [value]);
  return (
    <>
      {entries.slice(0, count).map(([name, each]) => <Entry key={name} name={name} value={each} path={[...path, name]} depth={depth} />)}
      {entries.length > count && <button class="more" onClick={() => setCount(count + WINDOW)}>{formatNumber(entries.length - count)} more</button>}
    </>
  );
}

/** Elements of an array, of which one window is open at first. The others open on request. */
function Elements({ values, path, depth }: { values: unknown[]; path: Path; depth: number }) {
  const [opened, setOpened] = useState<ReadonlySet<number>>(() => new Set([0]));
  const windows = [];
  for (let first = 0; first < values.length; first += WINDOW) {
    const last = Math.min(first + WINDOW, values.length);
    if (opened.has(first)) for (let k = first; k < last; k++) windows.push(<Entry key={k} name={String(k)} value={values[k]} path={[...path, k]} depth={depth} />);
    else windows.push(<button class="more" key={`w${first}`} onClick={() => setOpened(new Set([...opened, first]))}>{formatNumber(first)} to {formatNumber(last - 1)}</button>);
  }
  return <>{windows}</>;
}

/** Values of a list or object that were not loaded. */
function Rest({ count }: { count: number }) {
  const load = useContext(LoadRest);
  return count ? <button class="more" onClick={load}>{formatNumber(count)} more were not loaded. Load them</button> : null;
}

function Entry({ name, value, path, depth }: { name: string; value: unknown; path: Path; depth: number }) {
  const [isOpen, setOpen] = useState(path.length + depth <= 2);
  const count = value !== null && typeof value === 'object' ? Object.keys(value).length : 0;
  if (!count) {
    return <div class="entry"><span class="name"><Text text={name} />:</span> <Json value={value} path={path} /><Copies value={value} path={path} /></div>;
  }
  return (
    <div class="entry">
      <button class="name" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Text text={name} />: <span class="faint">{Array.isArray(value) ? `[ ${count} ]` : `{ ${count} }`}</span>
      </button>
      <Copies value={value} path={path} />
      {isOpen && <Json value={value} path={path} depth={depth} />}
    </div>
  );
}

function Leaf({ value, path }: { value: unknown; path: Path }) {
  if (typeof value !== 'string') return <span class={typeof value === 'number' ? 'number' : 'literal'}>{String(value)}</span>;
  return <StringLeaf text={value} path={path} />;
}

/** A string with its line breaks. Long strings are folded, JSON in it opens as a tree, and base64 is a chip. */
function StringLeaf({ text, path }: { text: string; path: Path }) {
  const [isWhole, setWhole] = useState(false);
  const [isTree, setTree] = useState(true);
  const bytes = useMemo(() => findBytes(text), [text]);
  const embedded = useMemo(() => (bytes ? undefined : parseEmbedded(text)), [text]);
  if (bytes && !isWhole) {
    return (
      <span class="chip">
        base64, {formatSize(bytes.size)}{bytes.mediaType && <>, <Text text={bytes.mediaType} /></>}
        <button class="more" onClick={() => setWhole(true)}>Show</button>
      </span>
    );
  }
  if (embedded && isTree) {
    return <><button class="more" title="This string contains JSON" onClick={() => setTree(false)}>JSON in a string</button><Json value={embedded} path={[...path, 'json']} /></>;
  }
  const isCut = !isWhole && text.length > FOLD && !hasMatchAfter(text, FOLD);
  return (
    <span class="string">
      "<Text text={isCut ? cut(text, FOLD) : text} />"
      {isCut && <button class="more" onClick={() => setWhole(true)}>{formatNumber(text.length - FOLD)} more characters</button>}
      {embedded && <button class="more" onClick={() => setTree(true)}>Show as JSON</button>}
    </span>
  );
}

function Copies({ value, path }: { value: unknown; path: Path }) {
  if (!useContext(HasCopies)) return null;
  return (
    <span class="copies">
      <Copy text={() => toText(value)} label="copy" name={`copy the value of ${formatPath(path)}`} />
      <Copy text={() => formatPath(path)} label="path" name={`copy the path ${formatPath(path)}`} />
    </span>
  );
}

function Copy({ text, label, name }: { text: () => string; label: string; name?: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = () => {
    void navigator.clipboard?.writeText(text()).then(() => {
      setCopied(true);
      setTimeout(() => setCopied(false), 1500);
    }, () => undefined);
  };
  return <button class={name ? 'more' : ''} aria-label={isCopied ? 'copied' : name ?? label} onClick={copy}>{isCopied ? 'copied' : label}</button>;
}
