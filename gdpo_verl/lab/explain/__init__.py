"""The interactive page: GRPO and GDPO side by side, on examples and toy policies.

notebook  the page: its widgets and their results
examples  the responses and rankings that the page shows first, and their rewards
calls     responses with real tool calls, scored and executed
compare   both advantages of a group, their ties, and exact counts
toy       policies of a few logits
study     a toy policy on five tasks
units     a toy policy with a reward in several scales
phantom   a toy policy with a length reward on prompts whose responses all fail
charts    texts, bars and tables, from page.html.j2
curves    SVG
serve     the local server and the static page
"""
