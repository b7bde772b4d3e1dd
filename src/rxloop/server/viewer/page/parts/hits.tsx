// Texts that were found in all runs, and in the open run.

import { formatAddress } from '../address.ts';
import { useEffect } from 'preact/hooks';
import type { Hit } from '../api.ts';
import { hasMore, place, searchRun, stepMatch } from '../find.ts';
import { hits, searchTexts } from '../findings.ts';
import { moveTo } from '../commands.ts';
import { currentMatches, useModel, words } from '../store.ts';
import { splitMarks, toLine } from '../text.ts';
import { formatNumber, plural } from '../time.ts';
import { List } from './list.tsx';
import { px } from './px.ts';

export function Hits() {
  const { text, hits: list, runs, next, isLoading } = hits.value;
  if (!text) return null;
  const count = `${formatNumber(list.length)}${next ? '+' : ''}`;
  return (
    <section class="table hits" aria-label="Found texts">
      <h2>{isLoading ? `Searching texts: ${count}` : list.length ? `${count} texts` : 'No text contains these words'}</h2>
      {list.length > 0 && (
        <List
          role="table" label="Texts" count={list.length} height={32} current={-1} columns={['run', 'seq', 'field', 'text']}
          render={(k, top) => <HitRow key={k} hit={list[k]} title={runs.get(list[k].taskId)?.title ?? ''} number={k} top={top} />}
        />
      )}
      {next && !isLoading && <button class="older" onClick={() => void searchTexts(text, next)}>Search older runs</button>}
    </section>
  );
}

function HitRow({ hit, title, number, top }: { hit: Hit; title: string; number: number; top: number }) {
  const link = formatAddress({ page: 'run', taskId: hit.taskId, at: `1.${hit.seq}.0` });
  return (
    <div class="row" role="row" aria-rowindex={number + 1} style={px({ top })} data-seq={hit.seq}>
      <span role="cell"><a href={link}><bdi>{toLine(title) || hit.taskId}</bdi></a></span>
      <span role="cell" class="mono quiet">{hit.seq}</span>
      <span role="cell" class="quiet">{hit.kind}, {toLine(hit.field)}</span>
      <span role="cell"><Excerpt hit={hit} /></span>
    </div>
  );
}

/** Part of a text, with its matches. */
function Excerpt({ hit }: { hit: Hit }) {
  return <bdi>{splitMarks(hit.text, hit.marks).map((each, k) => (each.isMarked ? <mark key={k}>{toLine(each.text)}</mark> : toLine(each.text)))}</bdi>;
}

/** Bar with the texts of the run that contain the words of its filter. */
export function MatchBar() {
  const { outline } = useModel();
  const text = words.value;
  useEffect(() => {
    const timer = setTimeout(() => void searchRun(), 150);
    return () => clearTimeout(timer);
  }, [text, outline.last]);
  if (!text) return null;
  const found = currentMatches.value;
  const count = found?.hits.length ?? 0;
  const hit = found?.hits[place.value];
  const total = `${formatNumber(count)}${count && hasMore() ? '+' : ''} ${plural(count, 'text')}`;
  const status = found?.failure ? `The search failed: ${found.failure}` : !count && (!found || found.isLoading) ? 'Searching' : !count ? 'No text contains these words' : hit ? `${formatNumber(place.value + 1)} of ${total}` : total;
  return (
    <div class="matchbar">
      <button aria-label="Previous match" title="Previous match (Shift and Enter)" disabled={!count} onClick={() => void stepMatch(-1)}>‹</button>
      <button aria-label="Next match" title="Next match (Enter)" disabled={!count} onClick={() => void stepMatch(1)}>›</button>
      <span role="status">{status}{hit && <span class="unseen">, event {hit.seq}: {toLine(hit.text)}</span>}</span>
      {found?.failure && <button onClick={() => void searchRun()}>Again</button>}
      {hit && <button class="link" onClick={() => moveTo(hit.seq)}><span class="quiet">seq {hit.seq}, {hit.kind}, {toLine(hit.field)}</span> <Excerpt hit={hit} /></button>}
    </div>
  );
}
