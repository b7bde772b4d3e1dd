// Problems of all runs, newest runs first.

import { useEffect } from 'preact/hooks';
import { formatAddress } from '../address.ts';
import type { Problem, ProblemPage } from '../api.ts';
import { loadRecent, recent } from '../findings.ts';
import { toLine } from '../text.ts';
import { formatAge, formatNumber } from '../time.ts';
import { Header, State } from '../parts/header.tsx';
import { List } from '../parts/list.tsx';
import { px } from '../parts/px.ts';
import { Sections } from '../parts/sections.tsx';
import { Shape } from '../parts/shape.tsx';
import { describe, WORDS } from './problems.tsx';

type Item = { kind: 'run'; of: ProblemPage['runs'][number] } | { kind: 'problem'; problem: Problem; taskId: string } | { kind: 'more'; count: number; taskId: string };

export function RecentProblems() {
  useEffect(() => void loadRecent(), []);
  const { runs, next, isLoading, failure } = recent.value;
  const items = runs.flatMap((of): Item[] => {
    const { taskId, problems = 0 } = of.run;
    const rows = of.problems.map((problem): Item => ({ kind: 'problem', problem, taskId }));
    const more = problems - of.problems.length;
    return [{ kind: 'run', of }, ...rows, ...(more > 0 ? [{ kind: 'more', count: more, taskId } as Item] : [])];
  });
  document.title = 'Problems · rxloop';
  return (
    <div class="page">
      <Header path={<Sections />}>{failure && <span class="offline">{failure}</span>}</Header>
      <nav class="tabs">
        <span class="count" role="status">{isLoading ? 'Reading runs' : `${formatNumber(runs.length)}${next ? '+' : ''} ${runs.length === 1 && !next ? 'run' : 'runs'} with problems`}</span>
        <span class="space" />
        <button onClick={() => void loadRecent()} disabled={isLoading}>Reload</button>
      </nav>
      <main class="body table recent">
        {items.length ? (
          <List
            role="grid" label="Problems" count={items.length} height={32} current={-1} columns={['problem', 'seq', 'name', 'text']}
            render={(k, top) => <Row key={k} item={items[k]} number={k} top={top} />}
          />
        ) : isLoading ? null : <div class="empty"><h2>No problems</h2><p>Checked for: {Object.values(WORDS).map(each => each[0]).join(', ')}.</p></div>}
        {next && !isLoading && <button class="older" onClick={() => void loadRecent(next)}>Load older runs</button>}
      </main>
    </div>
  );
}

function Row({ item, number, top }: { item: Item; number: number; top: number }) {
  const common = { role: 'row' as const, 'aria-rowindex': number + 1, style: px({ top }) };
  if (item.kind === 'run') {
    const { run } = item.of;
    return (
      <div class="row group" {...common}>
        <span role="gridcell"><State state={run.state} /></span>
        <span role="gridcell" class="quiet">{formatAge(Date.now() - Date.parse(run.updated))}</span>
        <span role="gridcell"><bdi>{toLine(run.agent)}</bdi></span>
        <span role="gridcell"><a href={formatAddress({ page: 'run', taskId: run.taskId, tab: 'problems' })}><bdi>{toLine(run.title ?? '') || run.taskId}</bdi></a></span>
      </div>
    );
  }
  if (item.kind === 'more') {
    return (
      <div class="row" {...common}>
        <span role="gridcell" class="kind"><a href={formatAddress({ page: 'run', taskId: item.taskId, tab: 'problems' })}>{formatNumber(item.count)} more</a></span>
      </div>
    );
  }
  const { problem } = item;
  const [words, family] = WORDS[problem.code] ?? [problem.code, 'run'];
  const more = describe(problem);
  return (
    <div class="row" {...common} data-code={problem.code}>
      <span role="gridcell" class="kind">
        <Shape family={family} isHollow={family === 'run'} />
        <a href={formatAddress({ page: 'run', taskId: item.taskId, at: `1.${problem.seq}.0` })}>{words}</a>{more && <span class="quiet">&nbsp;{more}</span>}
      </span>
      <span role="gridcell" class="mono">{problem.seq}</span>
      <span role="gridcell"><bdi>{toLine(problem.name ?? '')}</bdi></span>
      <span role="gridcell" class="quiet"><bdi>{toLine(problem.text)}</bdi></span>
    </div>
  );
}
