// The goals of a run after an event as a tree, and their changes since another event.

import type { Outline } from './outline.ts';
import type { Goal } from './protocol.d.ts';
import type { Line } from './state.ts';

export interface GoalLine {
  goal: Goal;
  /** Number of goals that include this one. */
  level: number;
  /** Changed properties, in words. */
  changes: string[];
  /** Goals to achieve first. */
  after: Goal[];
}

export const statusOf = (goal: Goal): string => goal.status ?? 'pending';

/** Return the `seq` of the event that contains the goals after an event, or 0. Nested agents have goals of their own. */
export function findGoals({ seq, kind, path }: Pick<Outline, 'seq' | 'kind' | 'path'>, last: number): number {
  for (let i = seq.length - 1; i >= 0; i--) if (seq[i] <= last && kind[i] === 'goals-updated' && !path[i]) return seq[i];
  return 0;
}

/** Compare goals by their ids. Parts follow the goal that includes them, and removed goals come last. */
export function compareGoals(before: readonly Goal[], now: readonly Goal[]): Line<GoalLine>[] {
  const old = new Map(before.map(each => [each.id, each]));
  const known = new Map(now.map(each => [each.id, each]));
  const lines: Line<GoalLine>[] = [];
  const list = (parent: string | null, level: number) => {
    for (const goal of now.filter(each => (each.parent ?? null) === parent)) {
      const earlier = old.get(goal.id);
      const changes = earlier ? describe(earlier, goal, old) : [];
      lines.push({
        sign: earlier ? (changes.length ? '~' : '') : '+',
        item: { goal, level, changes, after: (goal.dependsOn ?? []).flatMap(id => known.get(id) ?? []) },
      });
      list(goal.id, level + 1);
    }
  };
  list(null, 0);
  const removed = before.filter(each => !known.has(each.id));
  return [...lines, ...removed.map((goal): Line<GoalLine> => ({ sign: '-', item: { goal, level: 0, changes: [], after: [] } }))];
}

function describe(before: Goal, now: Goal, old: Map<string, Goal>): string[] {
  const [a, b] = [before, now].map(each => [
    statusOf(each), each.title, `part of ${old.get(each.parent ?? '')?.title ?? 'no goal'}`,
    `after ${(each.dependsOn ?? []).map(id => old.get(id)?.title ?? id).join(', ') || 'no goal'}`,
  ]);
  return a.filter((each, k) => each !== b[k]).map(each => `was ${each}`);
}
