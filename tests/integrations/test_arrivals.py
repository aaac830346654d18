"""transformers knows converted models once both packages are imported, in whichever order."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sepnorm import SepNormWarning
from sepnorm.integrations import arrivals

KNOWN = (
    "import transformers.quantizers.auto as auto; print('sepnorm' in auto.AUTO_QUANTIZER_MAPPING, auto.__spec__.loader)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        f"import sepnorm; {KNOWN}",
        f"import transformers, sepnorm; {KNOWN}",
        f"from transformers import BertModel; import sepnorm; {KNOWN}",
        f"import sepnorm; from transformers import BertModel; import importlib; {KNOWN}",
    ],
)
def test_the_order_of_imports_is_of_no_matter(code):
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.startswith("True") and "SourceFileLoader" in found


@pytest.mark.slow
def test_importing_sepnorm_imports_no_library():
    code = "import sys, sepnorm; print(any(name in sys.modules for name in ('torch', 'transformers', 'peft')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_library_without_the_place_is_imported_all_the_same():
    with pytest.warns(SepNormWarning, match=r"sepnorm cannot register with this version of nothing.*use sepnorm.load"):
        arrivals._fill("sepnorm.integrations.nothing")
