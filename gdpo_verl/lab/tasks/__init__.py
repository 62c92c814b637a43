"""The parts that all tasks share, for preparing their data sets.

The rows of a task are made in the folder of its recipe, in ``gdpo_verl.recipes.NAME.rows``. The
function ``prepare(out_dir, …)`` of this module writes them in verl's Parquet columns, with their
provenance.

rows       checks and writes rows
build      converts all rows of a source, and divides them into splits
source     reads rows from the hub, a file or a folder
generated  draws rows at random
examples   prompts with their ground truths
data_set   the declaration of a data set
"""
