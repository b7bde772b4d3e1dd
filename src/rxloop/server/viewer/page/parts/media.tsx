// Pictures and files of messages.

import { useContext, useEffect, useRef } from 'preact/hooks';
import { fileName, partsOf, readMedia, type Media, type Part } from '../media.ts';
import { model } from '../store.ts';
import { omissionOf } from '../omissions.ts';
import { formatSize } from '../time.ts';
import { toLine } from '../text.ts';
import { download } from './download.ts';
import { EventParts, LoadRest, LongText } from './text.tsx';

/** The content of a message: text, pictures and files. */
export function Content({ content, seq }: { content: unknown; seq: number }) {
  return <>{partsOf(content).map((each, k) => (each.type === 'text' || each.type === undefined ? <LongText key={k} text={each.text ?? ''} /> : <MediaPart key={k} part={each} seq={seq} />))}</>;
}

/** Pictures and files of the result of a call. */
export function EventMedia({ parts, seq }: { parts: Part[]; seq: number }) {
  return <EventParts seq={seq}>{parts.map((each, k) => <MediaPart key={k} part={each} seq={seq} />)}</EventParts>;
}

/** Pictures of at most this size are loaded when the reader sees their place. */
const MAX_PICTURE = 2_000_000;
/** Events whose pictures were loaded in this way. A picture that was removed from memory waits for the reader. */
const loaded = new Set<string>();

/** A picture or file of which only the beginning was loaded. */
function Unloaded({ media, label, seq }: { media: Media; label: string; seq: number }) {
  const key = `${model.peek().taskId} ${seq}`;
  const load = useContext(LoadRest);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (media.kind !== 'picture' || media.size > MAX_PICTURE || loaded.has(key)) return;
    const observer = new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting) return;
      loaded.add(key);
      load();
    });
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, [key]);
  return (
    <div class="media card" role="group" aria-label={`${media.kind} ${toLine(media.name)}`} ref={box}>
      <span aria-hidden="true">▤</span>
      <span class="about"><b><bdi>{toLine(media.name)}</bdi></b><small>{label}, not loaded</small></span>
      <button class="more" onClick={event => { event.stopPropagation(); load(); }}>Load</button>
    </div>
  );
}

export function MediaPart({ part, seq }: { part: Part; seq: number }) {
  const omitted = omissionOf(part)?.characters ?? 0;
  const media = readMedia(part, omitted);
  const label = [media.mediaType, media.size > 0 && formatSize(media.size)].filter(Boolean).join(', ');
  if (omitted) return <Unloaded media={media} label={label} seq={seq} />;
  if (media.kind === 'picture') {
    return (
      <figure class="media">
        <img src={`data:${media.mediaType};base64,${media.data}`} alt={toLine(media.name)} />
        <figcaption>{media.name !== 'image' && <><bdi>{toLine(media.name)}</bdi> </>}<span class="quiet">{label}</span> <Download media={media} seq={seq} /></figcaption>
      </figure>
    );
  }
  return (
    <div class="media card" role="group" aria-label={`${media.kind} ${toLine(media.name)}`}>
      <span aria-hidden="true">▤</span>
      <span class="about"><b><bdi>{toLine(media.name)}</bdi></b><small>{media.kind === 'address' ? <>not loaded: <bdi>{toLine(media.data)}</bdi></> : label}</small></span>
      {media.kind === 'file' && <Download media={media} seq={seq} />}
    </div>
  );
}

function Download({ media, seq }: { media: Media; seq: number }) {
  const save = (event: Event) => {
    event.stopPropagation();
    download([Uint8Array.from(atob(media.data), each => each.charCodeAt(0))], fileName(media, seq));
  };
  return <button class="more" aria-label={`Download ${toLine(media.name)}`} onClick={save}>Download</button>;
}
