// Text of models and tools, always shown as text.

import { useState } from 'preact/hooks';
import { bodyFailure, bodyOf, loadWhole, omittedOf } from '../bodies.ts';
import { words } from '../store.ts';
import { toSegments } from '../text.ts';

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

/** Note that the end of long texts of an event was not loaded, with a button that loads it. */
export function OmittedNote({ seq }: { seq: number }) {
  const omitted = omittedOf(bodyOf(seq));
  if (!omitted) return null;
  return (
    <p class="omitted">
      {omitted.toLocaleString('en-US')} more characters were not loaded. <button onClick={event => { event.stopPropagation(); void loadWhole(seq); }}>Load them</button>
      {bodyFailure.value && <span class="offline"> {bodyFailure.value.message}</span>}
    </p>
  );
}

/** Box with a text. */
export function Block({ text }: { text: string }) {
  return <div class="block" tabIndex={0}><LongText text={text} /></div>;
}
