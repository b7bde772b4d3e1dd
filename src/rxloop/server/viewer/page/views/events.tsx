// All events of a run as a table.

import { moveTo } from '../commands.ts';
import { FAILED, family, letter, role } from '../kinds.ts';
import { filtered, useModel, selected } from '../store.ts';
import { toLine } from '../text.ts';
import { formatDuration } from '../time.ts';
import { List } from '../parts/list.tsx';
import { Shape } from '../parts/shape.tsx';
import { px } from '../parts/px.ts';

export function EventsTable() {
  const { outline, rowOf } = useModel();
  const hits = filtered.value && new Set(filtered.value.hits);
  const indexes = Array.from({ length: outline.size }, (_, i) => i).filter(i => !hits || hits.has(rowOf[i]));
  const current = selected.value ? indexes.indexOf(outline.find(selected.value)) : -1;
  return (
    <div class="table events">
      <List
        role="grid" label="Events" columns={['seq', 'time', 'kind', 'step', 'name', 'text']} count={indexes.length} height={28} current={current}
        render={(k, top) => <EventRow key={indexes[k]} index={indexes[k]} number={k} top={top} isSelected={k === current} isReachable={k === Math.max(current, 0)} />}
      />
    </div>
  );
}

function EventRow({ index: i, number, top, isSelected, isReachable }: { index: number; number: number; top: number; isSelected: boolean; isReachable: boolean }) {
  const { outline } = useModel();
  const kind = outline.kind[i];
  const which = family(kind, outline.flags[i]);
  return (
    <div
      class={`row${isSelected ? ' selected' : ''}`} role="row" aria-rowindex={number + 1} aria-selected={isSelected} tabIndex={isReachable ? 0 : -1}
      style={px({ top })} data-seq={outline.seq[i]} onClick={() => moveTo(outline.seq[i])}
      onKeyDown={event => { if (event.key === 'Enter') moveTo(outline.seq[i]); }}
    >
      <span role="gridcell" class="mono">{outline.seq[i]}</span>
      <span role="gridcell" class="mono quiet">{formatDuration(outline.time[i])}</span>
      <span role="gridcell" class="kind"><Shape family={which} letter={letter(kind)} isHollow={role(kind) === 'begin' && !outline.opens[i] && !(outline.flags[i] & FAILED)} />{kind}</span>
      <span role="gridcell" class="quiet">{outline.step[i]}</span>
      <span role="gridcell"><bdi>{toLine([outline.path[i], outline.name[i]].filter(Boolean).join(' / '))}</bdi></span>
      <span role="gridcell" class="quiet"><bdi>{toLine(outline.label[i])}</bdi></span>
    </div>
  );
}
