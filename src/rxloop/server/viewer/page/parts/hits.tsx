// Texts that were found in all runs.

import { formatAddress } from '../address.ts';
import type { Hit } from '../api.ts';
import { hits, searchTexts } from '../findings.ts';
import { splitMarks, toLine } from '../text.ts';
import { formatNumber } from '../time.ts';
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
      <span role="cell"><bdi>{splitMarks(hit.text, hit.marks).map((each, k) => (each.isMarked ? <mark key={k}>{toLine(each.text)}</mark> : toLine(each.text)))}</bdi></span>
    </div>
  );
}
