"""The library that the saved cells of the book build, one module a chapter: `import agentrl as arl`."""
import inspect as _inspect
import sys as _sys

__version__ = "0.1.0"

# chapters, in order: written by the export
from .plotting import *
from .clamp import *
from .mdp import *
from .policy import *
from .gym import *
from .rollout import *
from .reinforce import *
from .advantages import *
from .ppo import *
from .grpo import *
from .kl import *
from .rewards import *
from .horizons import *
from .systems import *
from .batching import *
from .preferences import *
from .distillation import *
from .evaluation import *
from .debugging import *
from .capstone import *
from .frontier import *
from .llm import *
from .sandbox import *
from .coding_tools import *
from .engines import *
from .real_bugs import *


def _link_docstrings():
    """End each saved function's and class's docstring with the section that defines it."""
    for name, module in list(_sys.modules.items()):
        if name.startswith(__name__ + "."):
            for place, names in getattr(module, "_defined_in", {}).items():
                for obj in (getattr(module, name) for name in names):
                    line = f"Defined in {place}."
                    if getattr(obj, "__module__", None) == module.__name__ and line not in (obj.__doc__ or ""):
                        obj.__doc__ = f"{_inspect.cleandoc(obj.__doc__ or '')}\n\n{line}".lstrip()


_link_docstrings()
