"""One recipe per training method: the configuration and network of a new head, and its losses."""

from paceline.errors import InvalidParameter
from paceline.training.heads.recipes.base import Recipe
from paceline.training.heads.recipes.blockwise import BlockwiseRecipe
from paceline.training.heads.recipes.dspark import DSparkRecipe
from paceline.training.heads.recipes.eagle import EagleRecipe, HassRecipe
from paceline.training.heads.recipes.eagle3 import Eagle3OneNormRecipe, Eagle3Recipe
from paceline.training.heads.recipes.falcon import FalconRecipe
from paceline.training.heads.recipes.medusa import MedusaRecipe
from paceline.training.heads.recipes.mlp_speculator import MlpSpeculatorRecipe
from paceline.training.heads.recipes.p_eagle import PEagleRecipe

RECIPES: dict[str, type[Recipe]] = {
    "eagle3": Eagle3Recipe, "eagle3_one_norm": Eagle3OneNormRecipe, "dspark": DSparkRecipe,
    "mlp_speculator": MlpSpeculatorRecipe, "medusa": MedusaRecipe, "eagle": EagleRecipe, "hass": HassRecipe,
    "blockwise": BlockwiseRecipe, "falcon": FalconRecipe, "p_eagle": PEagleRecipe,
}  # fmt: skip
"""Recipes by name. `eagle` and `hass` train the same family in two ways, `eagle3` and `eagle3_one_norm` two forms of
one."""


def recipe_of(family: str) -> type[Recipe]:
    """The recipe of that name. Raises InvalidParameter for an unknown name."""
    if family not in RECIPES:
        raise InvalidParameter("family", f"{family!r} is not trained here", f"choose one of: {', '.join(RECIPES)}")
    return RECIPES[family]


__all__ = ["RECIPES", "Recipe", "recipe_of"]
