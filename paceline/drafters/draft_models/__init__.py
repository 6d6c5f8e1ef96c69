"""Other models that draft: of the target's vocabulary or another, one or several."""
