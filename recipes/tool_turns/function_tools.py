"""The tools of tool turns as verl has them: each runs in another process, within a deadline."""

from verl.tools.function_tool import function_tool

from gdpo_verl.lab.tasks.turn_tools import TOOLS, guarded

for tool in TOOLS.values():
    function_tool(guarded(tool))
