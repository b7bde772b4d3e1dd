"""What fits the window: counting, compressors, workspaces."""

from rxloop.context.blocks import Block, blocks_of, problems_of, repaired
from rxloop.context.compression import Compressed, Compression, LastCut
from rxloop.context.compressors import ChainedCompressor, SlidingWindowCompressor, TokenBudgetCompressor
from rxloop.context.counting import TextCounter, TokenEstimator
from rxloop.context.fact_ledger import FactLedger
from rxloop.context.facts import Fact, facts_of
from rxloop.context.semantic import SemanticCompressor
from rxloop.context.summaries import Summary, reflect
from rxloop.context.workspaces import CompositeWorkspace, FolderWorkspace, Scratchpad, TextWorkspace
from rxloop.pipeline.requests import ThinkingResult

__all__ = [
    "Block",
    "ChainedCompressor",
    "CompositeWorkspace",
    "Compressed",
    "Compression",
    "Fact",
    "FactLedger",
    "FolderWorkspace",
    "LastCut",
    "Scratchpad",
    "SemanticCompressor",
    "SlidingWindowCompressor",
    "Summary",
    "TextCounter",
    "TextWorkspace",
    "ThinkingResult",
    "TokenBudgetCompressor",
    "TokenEstimator",
    "blocks_of",
    "facts_of",
    "problems_of",
    "reflect",
    "repaired",
]
