"""Wording of the stages of the nine strategies."""

from __future__ import annotations

_STAGES = """
problem_reception: Take in the problem and restate it
    Restate the problem in your own words: what is given, what is asked, and what an answer has to satisfy.
initial_thought_planning: Guess how many thoughts are needed and sketch a start
    Estimate how many thoughts this will take, and sketch how you will begin.
thought_generation: Produce one thought: analysis, question, doubt or revision
    Think one thought further: an analysis, a question, a doubt, or a better version of an earlier thought.
thought_evaluation: Judge whether the thought stands or must be revised
    Judge your last thought. Does it hold, and does it help? Say whether it stands or must be revised.
thought_revision: Replace an earlier thought in the light of new insight
    Name the earlier thought that was wrong or weak, and write what replaces it.
continuation_decision: Choose: go on, branch off, or conclude
    Decide on what you have so far: go on, try another line, or conclude. Give the reason.
thought_adjustment: Raise or lower the estimate of thoughts
    Say how many thoughts you now expect to need in all, and why.
branch_creation: Open an alternative line from a given thought
    Open an alternative line: say from which thought it departs, and what it does differently.
hypothesis_generation: State a candidate answer
    State one candidate answer, precisely enough to be tested.
hypothesis_verification: Test the candidate against the thoughts so far
    Test the candidate against every thought so far. Look for what contradicts it.
solution_finalization: Settle the verified answer
    Write down the verified answer in its final form.
final_response: Give the answer; nothing follows
    Give the answer to the person who asked: complete, and without your working notes.
step_decomposition: Split the problem into ordered steps
    Split the problem into numbered steps, each of which needs only those before it.
sequential_reasoning: Work the steps in order
    Work through the steps in order. Write down the result of each before you begin the next.
solution_formulation: Derive the answer from what was found
    Derive the answer from what you found, and from nothing else.
answer_verification: Check the answer against the question
    Check the answer against the question: is it what was asked, and does it meet every condition?
initial_reasoning: Find out what is not yet known
    Say what you know already, and what you must find out.
action_planning: Pick one concrete action
    Choose the one action that tells you most, and say what you expect of it.
action_execution: Run the action outside
    Call the tool for the action that you chose.
observation_reception: Take in what the action returned
    Write down what the action returned, without interpreting it. An error is an observation, too.
reasoning_update: Fold the observation into the reasoning
    Say what the observation changes: what you now know, and what has proved wrong.
evaluation_checkpoint: Choose: act again or answer
    Decide whether you know enough to answer, or must act again. Do not repeat an action that told you nothing.
planning_phase: Plan every step before acting
    Plan every step that is needed before any of them is carried out.
tool_call_specification: Name every call with its inputs and dependencies
    Write each step on a line as `Plan: why. #E1 = tool_name[{"argument": "value"}]`, numbered from #E1. Where a
    step needs the result of an earlier one, write its label, such as #E1, in place of the value.
working_phase: Run all planned calls, independent ones together
    Run the planned calls as they are; those that do not depend on each other at the same time.
evidence_collection: Gather the results under their labels
    Gather the results under their labels, in order, failures included.
solving_phase: Answer from the evidence only
    Solve the problem from the plan and its evidence alone. Say so where the evidence is missing or in doubt.
scratchpad_initialization: Set up variables and their start values
    Name the variables that the calculation needs, with their start values.
iterative_calculation: Do one step of the calculation
    Do the next step of the calculation, and only that one.
state_tracking: Write down the new values
    Write down the value of every variable after this step.
result_extraction: Read the result out of the state
    Read the result out of the variables, with its unit.
problem_decomposition: Split the question into sub-questions
    Split the question into simpler ones whose answers together answer it.
sub_question_formulation: Put the next sub-question
    Put the next sub-question, so that it can be answered by itself.
sub_question_answering: Answer it
    Answer this sub-question alone, in a sentence.
answer_integration: Fold the answer into the whole
    Say what this answer settles of the whole question, and what is still open.
completion_check: Choose: ask again or answer
    Decide whether the answers so far suffice, or another sub-question is needed.
multiple_path_sampling: Prepare several independent lines of reasoning
    Prepare several lines of reasoning that do not lean on each other.
reasoning_path_execution: Run each line to an answer
    Follow this line of reasoning by itself until it gives an answer.
answer_collection: Collect the answers by line
    List the answer of each line, in the same form, so that they can be compared.
consistency_analysis: Count agreeing answers
    Count which answers agree. Answers that differ in form alone are the same.
majority_selection: Take the most frequent answer
    Take the most frequent answer, and say how many lines gave it.
abstraction: Name the kind of problem
    Step back from the details: of what general kind is this problem?
principle_identification: Name the principles that govern it
    Name the principles, laws or facts that govern problems of this kind.
approach_selection: Choose the general approach
    Choose the approach that follows from these principles.
specific_application: Apply it to this case
    Apply the approach to this case: put its details in the place of the general terms.
step_by_step_solution: Work it through
    Work it through step by step to a result.
solution_verification: Check result against case and principle
    Check the result twice: against the details of the case, and against the principles.
approach_exploration: List several different approaches
    List several approaches that differ in kind, each in a sentence.
branch_development: Take one branch a step further
    Take this branch one step further.
branch_evaluation: Score the branch
    Score this branch from 0 to 1: how likely does it lead to a right answer? Give the reason.
branch_selection: Keep, drop or prefer branches
    Compare the scores: say which branches to keep, and which to drop.
path_justification: Say why the chosen path was best
    Say why the chosen path is better than those that were dropped.
"""


def _read(text: str) -> dict[str, tuple[str, str]]:
    """Read a line `stage: what it is for` for each stage, and below it, indented, what the model is to do."""
    stages: dict[str, tuple[str, str]] = {}
    name = description = ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            stages[name] = description, f"{stages[name][1]} {line.strip()}".strip()
        else:
            name, _, description = line.partition(": ")
            stages[name] = description, ""
    return stages


STAGES = _read(_STAGES)
"""For each stage what it is for, and what the model is to do."""
