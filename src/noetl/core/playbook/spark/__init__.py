"""What the language says about tasks of kind `spark`: which fields there are and what may be in them.

The same readers look at a document when it is registered and at rendered fields when a task runs, so a wrong field is
told as early as it can be known and always in the same words."""
