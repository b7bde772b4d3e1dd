"""Command `completion`: completion scripts for shells."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

from rxloop.cli.terminal import report_errors, write_plain

_BASH = r"""
_rxloop_completion() {
    local line=${COMP_LINE:0:COMP_POINT} current
    local -a words
    # Split at spaces only, because Bash also splits model names such as zai:glm-4.7 at the colon.
    read -ra words <<< "${line//[\"\'\\]/ }"
    [[ $line == *[[:space:]] ]] && words+=("")
    local index=$(( ${#words[@]} - 1 ))
    current=${words[index]}
    local IFS=$'\n'
    COMPREPLY=($(IFS=' ' COMP_WORDS="${words[*]}" COMP_CWORD=$index _RXLOOP_COMPLETE=complete_bash rxloop 2>/dev/null))
    if [[ $current == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*:}"}"}")
    fi
}
complete -o default -F _rxloop_completion rxloop
"""


class Shell(StrEnum):
    """Supported shell."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    powershell = "powershell"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.")]) -> None:
    """Print the completion script of a shell.

    Commands, options, run ids, models and strategies are completed. Load the script when the shell starts:

    bash: echo 'eval "$(rxloop completion bash)"' >> ~/.bashrc

    zsh: echo 'eval "$(rxloop completion zsh)"' >> ~/.zshrc, after compinit

    fish: rxloop completion fish > ~/.config/fish/completions/rxloop.fish

    powershell: rxloop completion powershell >> $PROFILE
    """
    with report_errors():
        if shell is Shell.bash:
            # Typer's script cannot complete values with colons.
            script = _BASH.strip()
        else:
            script = get_completion_script(prog_name="rxloop", complete_var="_RXLOOP_COMPLETE", shell=shell.value)
        write_plain(script + "\n")
