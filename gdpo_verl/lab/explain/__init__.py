"""The interactive page: GRPO and GDPO side by side, on examples and toy policies.

notebook  the page: its widgets, and what these show
examples  the answers and rankings it starts with, and what scores them
calls     answers with real tool calls, scored and executed
compare   both advantages of a group, their ties, and exact counts
toy       policies of a few logits
study     one of them on five tasks
units     one of them with a reward in several units
phantom   one of them with a length reward where all answers fail
charts    texts, bars and tables, from page.html.j2
curves    SVG
serve     the local server and the static page
"""
