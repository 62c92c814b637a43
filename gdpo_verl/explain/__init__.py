"""The interactive page: GRPO and GDPO side by side, on examples and toy policies.

page         the notebook: which picture follows which widgets
sections     the page's sections: their widgets and what these show
examples     the answers and rankings it starts with, and what scores them
calls        answers with real tool calls, scored and executed
compare      both advantages of a group, their ties, and exact counts
toy          policies of a few logits
study        one of them on five tasks, and when to use which
units        one of them with a reward in several units
phantom      one of them with a length reward where all answers fail
conclusions  sentences about groups, made from the numbers
charts       HTML
curves       SVG
serve        the local server and the static page
"""
