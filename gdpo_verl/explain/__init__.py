"""The interactive page: GRPO and GDPO side by side, on examples, a toy policy and one's own run.

page         the notebook: widgets, and which picture follows which
examples     the answers and rankings it starts with, and what scores them
compare      both advantages of a group, their ties, and exact counts
toy          a policy of three logits
conclusions  sentences made from the numbers
dumps        the user's own rollouts
charts       HTML and SVG
serve        the local server and the static page
"""
