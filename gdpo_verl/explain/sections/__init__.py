"""The page's sections, a file each: `form` makes the widgets, `widgets` lays them out, and `show`
gives the markup that follows from their values.

`show` asks nothing but its arguments, so that the running page, the static one and a test get the
same.
"""
