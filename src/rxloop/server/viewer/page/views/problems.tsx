// Problems of a run, in the order of their first events.

import type { Problem } from '../api.ts';
import { moveTo } from '../commands.ts';
import type { Family } from '../kinds.ts';
import { playhead, problems, selected, useModel } from '../store.ts';
import { toLine } from '../text.ts';
import { formatDuration, formatNumber } from '../time.ts';
import { List } from '../parts/list.tsx';
import { px } from '../parts/px.ts';
import { Shape } from '../parts/shape.tsx';

export const WORDS: Record<string, [text: string, family: Family]> = {
  run_failed: ['run failed', 'failed'],
  orphaned: ['no process owns this run', 'failed'],
  model_failed: ['model failed', 'failed'],
  retried: ['request repeated', 'model'],
  tool_failed: ['tool failed', 'failed'],
  refused: ['call refused', 'tool'],
  stalled: ['nothing happened', 'run'],
  repeated: ['same call repeated', 'tool'],
  waits: ['waits for an answer', 'you'],
  cut_unmet: ['context too large', 'run'],
  tools_unavailable: ['tools unavailable', 'failed'],
};

export function Problems() {
  const { outline } = useModel();
  const list = problems.value;
  if (!list) return <div class="table" aria-busy="true" />;
  if (!list.length) {
    return (
      <div class="table">
        <div class="empty">
          <h2>No problems in {formatNumber(outline.size)} events</h2>
          <p>Checked for: {Object.values(WORDS).map(each => each[0]).join(', ')}.</p>
        </div>
      </div>
    );
  }
  const current = selected.value ? list.findIndex(each => each.seq === playhead.value) : -1;
  return (
    <div class="table problems">
      <List
        role="grid" label="Problems" columns={['problem', 'seq', 'time', 'name', 'text']} count={list.length} height={36} current={current}
        render={(k, top) => <ProblemRow key={k} problem={list[k]} number={k} top={top} isSelected={k === current} isReachable={k === Math.max(current, 0)} />}
      />
    </div>
  );
}

/** Return the number or duration of a problem. */
export function describe(problem: Problem): string {
  if (problem.code === 'orphaned' && problem.seconds) return `since ${new Date(Date.now() - problem.seconds * 1000).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' })}`;
  const duration = problem.code === 'stalled' && problem.seconds && formatDuration(problem.seconds * 1000);
  return [(problem.count ?? 0) > 1 && `${problem.count} times`, duration].filter(Boolean).join(', ');
}

function ProblemRow({ problem, number, top, isSelected, isReachable }: { problem: Problem; number: number; top: number; isSelected: boolean; isReachable: boolean }) {
  const { outline } = useModel();
  const [words, family] = WORDS[problem.code] ?? [problem.code, 'run'];
  const time = outline.time[outline.find(problem.seq)] ?? 0;
  const open = () => moveTo(problem.seq);
  const more = describe(problem);
  return (
    <div
      class={`row${isSelected ? ' selected' : ''}`} role="row" aria-rowindex={number + 1} aria-selected={isSelected} tabIndex={isReachable ? 0 : -1}
      style={px({ top })} data-seq={problem.seq} onClick={open} onKeyDown={event => { if (event.key === 'Enter') open(); }}
    >
      <span role="gridcell" class="kind"><Shape family={family} isHollow={family === 'run'} /><b>{words}</b>{more && <span class="quiet">&nbsp;{more}</span>}</span>
      <span role="gridcell" class="mono">{problem.seq}</span>
      <span role="gridcell" class="mono quiet">{formatDuration(time)}</span>
      <span role="gridcell"><bdi>{toLine(problem.name ?? '')}</bdi></span>
      <span role="gridcell" class="quiet"><bdi>{toLine(problem.text)}</bdi></span>
    </div>
  );
}
