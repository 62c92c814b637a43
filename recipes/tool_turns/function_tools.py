"""The tools of tool turns for verl: each runs in another process, within a deadline."""

from gdpo_verl.recipes.tool_turns.tools import TOOLS, guarded
from verl.tools.function_tool import function_tool

for tool in TOOLS.values():
    function_tool(guarded(tool))
