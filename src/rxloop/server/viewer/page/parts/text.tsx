// Text of models and tools, always shown as text.

import { createContext, type ComponentChildren } from 'preact';
import { useContext, useState } from 'preact/hooks';
import { bodyFailure, bodyOf, loadWhole } from '../bodies.ts';
import { omissionOf } from '../omissions.ts';
import { words } from '../store.ts';
import { toSegments } from '../text.ts';
import { formatNumber } from '../time.ts';

const SHOWN = 20_000;
/** Longer texts are only opened by the reader. */
const MAX_OPENED = 200_000;

/** True if the part of a text after an index contains the words of the filter. */
export const hasMatchAfter = (text: string, index: number): boolean =>
  words.value !== '' && text.length < MAX_OPENED && text.toLowerCase().lastIndexOf(words.value.toLowerCase()) > index - words.value.length;

/** Text with its line breaks. Control characters are marked codes. */
export function Text({ text }: { text: string }) {
  const segments = toSegments(text);
  return <bdi>{segments.map((each, k) => (each.isCode ? <span class="code" key={k}>{each.text}</span> : each.text))}</bdi>;
}

/** Text that is cut, if it is long, until the reader asks for the rest. */
export function LongText({ text }: { text: string }) {
  const [isWhole, setWhole] = useState(false);
  const isCut = !isWhole && text.length > SHOWN && !hasMatchAfter(text, SHOWN);
  return (
    <>
      <Text text={isCut ? text.slice(0, SHOWN) : text} />
      {isCut && (
        <button class="more" onClick={event => { event.stopPropagation(); setWhole(true); }}>
          Show all {text.length.toLocaleString('en-US')} characters
        </button>
      )}
    </>
  );
}

/** Loads the whole of the document that contains the displayed values. */
export const LoadRest = createContext<() => void>(() => undefined);

/** Note that parts of a value were not loaded, with a button that loads them. */
export function OmittedNote({ value }: { value: unknown }) {
  const load = useContext(LoadRest);
  const { characters, values } = omissionOf(value) ?? { characters: 0, values: 0 };
  if (!characters && !values) return null;
  const parts = [characters && `${formatNumber(characters)} more characters`, values && `${formatNumber(values)} more values`];
  return <p class="omitted">{parts.filter(Boolean).join(' and ')} were not loaded. <button onClick={event => { event.stopPropagation(); load(); }}>Load them</button></p>;
}

/** Parts of an event, from which the reader can load the rest of it. */
export function EventParts({ seq, children }: { seq: number; children: ComponentChildren }) {
  return <LoadRest.Provider value={() => void loadWhole(seq)}>{children}</LoadRest.Provider>;
}

/** Note that parts of an event were not loaded. */
export function EventNote({ seq }: { seq: number }) {
  const event = bodyOf(seq);
  if (!omissionOf(event)) return null;
  return <EventParts seq={seq}><OmittedNote value={event} />{bodyFailure.value && <p class="omitted offline">{bodyFailure.value.message}</p>}</EventParts>;
}

/** Box with a text. */
export function Block({ text }: { text: string }) {
  return <div class="block" tabIndex={0}><LongText text={text} /></div>;
}
