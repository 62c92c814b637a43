"""Register the tools of this task with verl; each call runs in another process with a deadline."""

from gdpo_verl.recipes.tool_turns.tools import TOOLS, guarded
from verl.tools.function_tool import function_tool

for tool in TOOLS.values():
    function_tool(guarded(tool))
